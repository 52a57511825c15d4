"""Count and time all questions at the seam, and show them in Prometheus' form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from vlm.chat import (
    Answer,
    AnswerStats,
    AskRequest,
    ChatEngine,
    MemoryReading,
    ModelState,
    Piece,
    Rates,
)
from vlm.errors import BusyError

_SECONDS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_TPS = (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The numbers of one server; every question that passes a watched engine is in them."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine
        self.registry = CollectorRegistry()
        self.registry.register(_EngineReadings(engine))
        name, r = ["source"], self.registry
        self.answers = Counter(
            "vlm_answers", "Questions by how they ended.", ["source", "outcome"], registry=r
        )
        self.http_requests = Counter(
            "vlm_http_requests", "Requests to the API.", ["path", "status"], registry=r
        )
        self.waiting = Gauge("vlm_waiting_questions", "Questions in the queue.", registry=r)
        self.running = Gauge("vlm_running_answers", "Answers being computed.", registry=r)
        self.prompt_tokens = Counter("vlm_prompt_tokens", "Tokens of prompts.", name, registry=r)
        self.cached_tokens = Counter(
            "vlm_cached_tokens", "Prompt tokens that were not computed again.", name, registry=r
        )
        self.visual_tokens = Counter(
            "vlm_visual_tokens", "Prompt tokens of pictures.", name, registry=r
        )
        self.new_tokens = Counter("vlm_new_tokens", "Tokens written.", name, registry=r)
        self.queue_s = self._histogram("vlm_queue_seconds", "Wait for the model.", _SECONDS)
        self.vision_s = self._histogram("vlm_vision_seconds", "Encoding pictures.", _SECONDS)
        self.prefill_s = self._histogram("vlm_prefill_seconds", "Reading the prompt.", _SECONDS)
        self.ttft_s = self._histogram(
            "vlm_ttft_seconds", "From the question to the first token.", _SECONDS
        )
        self.decode_tps = self._histogram(
            "vlm_decode_tokens_per_second", "Tokens written a second, after the first.", _TPS
        )

    def watch(self, source: str) -> ChatEngine:
        """Return the engine as it is, except that questions through it are counted."""
        return WatchedEngine(self._engine, self, source)

    def exposition(self) -> bytes:
        """All numbers as text for Prometheus."""
        return generate_latest(self.registry)

    def note(self, source: str, stats: AnswerStats) -> None:
        """Take in what one answer cost."""
        self.answers.labels(source, stats.finish_reason).inc()
        self.prompt_tokens.labels(source).inc(stats.prompt_tokens)
        self.cached_tokens.labels(source).inc(stats.cached_tokens)
        self.visual_tokens.labels(source).inc(stats.visual_tokens)
        self.new_tokens.labels(source).inc(stats.new_tokens)
        self.queue_s.observe(stats.queue_s)
        if stats.vision_s:
            self.vision_s.observe(stats.vision_s)
        if stats.prefill_s:
            self.prefill_s.observe(stats.prefill_s)
        if stats.ttft_s:
            self.ttft_s.observe(stats.ttft_s)
        if stats.decode_tps:
            self.decode_tps.observe(stats.decode_tps)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)


class WatchedEngine:
    """A ChatEngine that counts what passes through it."""

    def __init__(self, engine: ChatEngine, metrics: Metrics, source: str) -> None:
        self._engine = engine
        self._metrics = metrics
        self._source = source

    def ask(self, request: AskRequest) -> Answer:
        """Queue a question. Raises BusyError."""
        try:
            return _WatchedAnswer(self._engine.ask(request), self._metrics, self._source)
        except BusyError:
            self._metrics.answers.labels(self._source, "refused").inc()
            raise

    def read_ahead(self, request: AskRequest) -> Answer:
        """Read pictures before their question; the question itself is counted later."""
        return self._engine.read_ahead(request)

    def state(self) -> ModelState:
        """Say where the model is."""
        return self._engine.state()

    def memory(self) -> MemoryReading:
        """Read memory and CPU use."""
        return self._engine.memory()

    def rates(self) -> Rates:
        """Say how fast answers came lately."""
        return self._engine.rates()

    def forget(self, conversation_id: str) -> None:
        """Stop and drop all that is kept for a conversation."""
        self._engine.forget(conversation_id)

    def free_caches(self) -> int:
        """Drop all caches that no running answer holds; return their bytes."""
        return self._engine.free_caches()

    def retry_load(self) -> None:
        """Try to load the model again."""
        self._engine.retry_load()

    def close(self) -> None:
        """Stop all work."""
        self._engine.close()


class _WatchedAnswer:
    """An answer whose stages and end are counted while it is read."""

    def __init__(self, answer: Answer, metrics: Metrics, source: str) -> None:
        self._answer = answer
        self._metrics = metrics
        self._source = source

    def __iter__(self) -> Iterator[Piece]:
        """Yield the answer's pieces. Raises VLMError."""
        stage, is_over = self._metrics.waiting, False
        stage.inc()
        try:
            # Closed here and not when it is collected: the work of a lost reader ends at once.
            with closing(cast("_Closable", iter(self._answer))) as pieces:
                for piece in pieces:
                    if stage is self._metrics.waiting and _is_running(piece):
                        stage.dec()
                        stage = self._metrics.running
                        stage.inc()
                    if piece.stats is not None:
                        is_over = True
                        self._metrics.note(self._source, piece.stats)
                    yield piece
        except GeneratorExit:
            if not is_over:
                self._metrics.answers.labels(self._source, "cancelled").inc()
            raise
        except Exception:
            self._metrics.answers.labels(self._source, "failed").inc()
            raise
        finally:
            stage.dec()

    def stop(self) -> None:
        """End the work."""
        self._answer.stop()


class _Closable(Iterator[Piece]):
    def close(self) -> None:
        """End a generator."""


class _EngineReadings(Collector):
    """What is read from the engine when it is asked for: memory by part, and readiness."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing beforehand: a reading is not taken at registration."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read the engine once."""
        memory, state = self._engine.memory(), self._engine.state()
        parts = GaugeMetricFamily("vlm_memory_bytes", "Memory by part.", labels=["part"])
        for part in (
            "rss", "peak_rss", "weights", "kv_cache", "feature_cache", "available", "total",
        ):  # fmt: skip
            parts.add_metric([part], getattr(memory, f"{part}_bytes"))
        yield parts
        yield _gauge("vlm_conversations", "Chats whose cache is kept.", memory.conversations)
        yield _gauge("vlm_cpu_percent", "Of the usable cores together.", memory.cpu_percent)
        yield _gauge("vlm_ready", "1 when the model can answer.", state.stage == "ready")


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _is_running(piece: Piece) -> bool:
    return piece.stage not in ("queued", "loading")
