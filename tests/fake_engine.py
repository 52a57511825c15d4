"""A ChatEngine without a model: answers as a test tells it to, remembers what it was asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from vlm.chat import (
    AnswerStats,
    AskRequest,
    Capacity,
    FinishReason,
    MemoryReading,
    ModelState,
    Piece,
    Rates,
)
from vlm.errors import BusyError
from vlm.picture_size import PictureGeometry
from vlm.units import GIB, KIB, MIB

READY = ModelState(
    "ready",
    model="fake/Fake-VL",
    precision="mixed",
    precision_reason="fastest of two measured",
    capacity=Capacity(8192, 224 * KIB, PictureGeometry()),
)


@dataclass
class Script:
    """How the next answers go."""

    words: tuple[str, ...] = ("A ", "red ", "circle.")
    before: tuple[Piece, ...] = ()
    """Pieces of the wait, given before the first word."""
    ahead: tuple[Piece, ...] = ()
    """Pieces of a read-ahead, given at once."""
    by_step: bool = False
    """Whether each piece of the wait and each word is held until FakeEngine.step() lets it go."""
    error: Exception | None = None
    """Raised after the words."""
    finish_reason: FinishReason = "stop"


class FakeAnswer:
    """A running answer of the FakeEngine."""

    def __init__(
        self, engine: FakeEngine, request: AskRequest, script: Script, is_ahead: bool = False
    ) -> None:
        self.request = request
        self._is_ahead = is_ahead
        self._engine = engine
        self._script = script
        self._stop = threading.Event()
        self.ended = threading.Event()

    def stop(self) -> None:
        """End the stream soon."""
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        """True once somebody asked for the end."""
        return self._stop.is_set()

    def __iter__(self) -> Iterator[Piece]:
        """Yield the script's pieces; one answer at a time, like the real engine."""
        try:
            while not self._engine.may_run.wait(0.2):
                if self._stop.is_set():
                    yield self._done(0, "cancelled")
                    return
                yield Piece("loading")
            with nullcontext() if self._is_ahead else self._engine.one_at_a_time:
                yield from self._run()
        finally:
            self._stop.set()
            self.ended.set()

    def _run(self) -> Iterator[Piece]:
        script = self._script
        words = [Piece("decode", text=word) for word in script.words]
        last = Piece("prefill")
        for index, piece in enumerate((*script.before, *words)):
            while script.by_step and not self._engine.steps.acquire(timeout=0.1):
                if self._stop.is_set():
                    break
                yield last
            if self._stop.is_set():
                yield self._done(max(0, index - len(script.before)), "cancelled")
                return
            yield piece
            last = replace(piece, text="")
        if script.error is not None:
            raise script.error
        yield self._done(len(script.words), script.finish_reason)

    def _done(self, new_tokens: int, finish_reason: FinishReason) -> Piece:
        pictures = sum(len(message.pictures) for message in self.request.messages)
        stats = AnswerStats(
            prompt_tokens=20 + 60 * pictures,
            visual_tokens=60 * pictures,
            cached_tokens=7 * (len(self.request.messages) - 1),
            new_tokens=new_tokens,
            queue_s=0.0,
            vision_s=0.5 * pictures,
            prefill_s=0.25,
            ttft_s=1.25,
            prefill_tps=80.0,
            decode_tps=8.25 if new_tokens > 1 else 0.0,
            finish_reason=finish_reason,
            token_ids=tuple(range(1, new_tokens + 1)),
        )
        return Piece("done", stats=stats)


@dataclass
class FakeEngine:
    """Stands in for the engine at the one seam of vlm/chat.py."""

    script: Script = field(default_factory=Script)
    model_state: ModelState = READY
    answers: list[FakeAnswer] = field(default_factory=list)
    read: list[FakeAnswer] = field(default_factory=list)
    """Read-aheads, in order."""
    forgotten: list[str] = field(default_factory=list)
    measured: Rates = Rates()
    is_full: bool = False
    load_retries: int = 0
    rss_bytes: int = 3 * GIB
    kv_cache_bytes: int = 128 * MIB
    memory_calls: int = 0
    may_run: threading.Event = field(default_factory=threading.Event)
    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Start with the model loaded."""
        self.may_run.set()

    def step(self, count: int = 1) -> None:
        """Let go of so many pieces of answers that go by step."""
        self.steps.release(count)

    def reset(self) -> None:
        """End all answers and be as new."""
        self.close()
        self.may_run.set()
        self.script, self.model_state, self.measured = Script(), READY, Rates()
        self.is_full, self.load_retries, self.rss_bytes = False, 0, 3 * GIB
        self.kv_cache_bytes = 128 * MIB
        self.answers.clear()
        self.read.clear()
        self.forgotten.clear()
        self.steps = threading.Semaphore(0)

    @property
    def requests(self) -> list[AskRequest]:
        """What was asked, in order."""
        return [answer.request for answer in self.answers]

    def ask(self, request: AskRequest) -> FakeAnswer:
        """Remember the question and answer by the script. Raises BusyError."""
        if self.is_full:
            raise BusyError("16 questions are waiting already and the limit is <16>. Try later.")
        answer = FakeAnswer(self, request, replace(self.script))
        self.answers.append(answer)
        return answer

    def read_ahead(self, request: AskRequest) -> FakeAnswer:
        """Remember the request and read the pictures by the script, beside any answer."""
        answer = FakeAnswer(
            self, request, Script(words=(), before=self.script.ahead), is_ahead=True
        )
        self.read.append(answer)
        return answer

    def state(self) -> ModelState:
        """Give the state the test set."""
        return self.model_state

    def rates(self) -> Rates:
        """Give the rates the test set."""
        return self.measured

    def memory(self) -> MemoryReading:
        """Give numbers that are easy to recognise."""
        self.memory_calls += 1
        return MemoryReading(
            rss_bytes=self.rss_bytes,
            peak_rss_bytes=self.rss_bytes,
            weights_bytes=2 * GIB,
            kv_cache_bytes=self.kv_cache_bytes,
            feature_cache_bytes=64 * MIB,
            available_bytes=5 * GIB,
            total_bytes=8 * GIB,
            is_container_limit=True,
            cpu_percent=93.0,
            cores=2,
            conversations=1,
        )

    def forget(self, conversation_id: str) -> None:
        """Remember it, and stop the conversation's answers."""
        self.forgotten.append(conversation_id)
        for answer in self.answers:
            if answer.request.conversation_id == conversation_id:
                answer.stop()

    def free_caches(self) -> int:
        """Drop the caches; what they held is told in memory() no more."""
        freed, self.kv_cache_bytes = self.kv_cache_bytes, 0
        return freed

    def retry_load(self) -> None:
        """Count it."""
        self.load_retries += 1

    def close(self) -> None:
        """Stop everything."""
        for answer in self.answers:
            answer.stop()


def wait_until(condition: object, timeout_s: float = 5.0) -> None:
    """Wait until a callable is true; fail when it never is."""
    end_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.02)
