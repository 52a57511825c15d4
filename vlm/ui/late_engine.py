"""Put the page up before the engine: importing torch takes longer than everything else.

Until the engine is there its questions wait here; from then on every call passes through.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from vlm.chat import Answer, AskRequest, ChatEngine, MemoryReading, ModelState, Piece, Rates
from vlm.errors import BusyError, GenerationError
from vlm.memory import ProcessProbe
from vlm.stats import AnswerClock

logger = logging.getLogger(__name__)

_STARTING = ModelState("finding", "Starting the engine.")
_CLOSED = ModelState("closed", "The app is shutting down; start it again to ask.")
_BROKEN = "The engine could not be started. See the terminal for details."
_HEARTBEAT_S = 0.5


class LateEngine:
    """A ChatEngine that is made in an instant and starts the real one when told to."""

    def __init__(self, make: Callable[[], ChatEngine], queue_size: int) -> None:
        """Remember how to make the engine; nothing is imported yet.

        Args:
            make: imports and makes the engine; called once, in a thread of its own.
            queue_size: questions that may wait for it.
        """
        self._make = make
        self._queue_size = queue_size
        self._probe = ProcessProbe()
        self._engine: ChatEngine | None = None
        self._state = _STARTING
        self._is_over = threading.Event()
        """Set when the engine is there, will never be, or is closed."""
        self._waiting = 0
        self._early: weakref.WeakSet[_LateAnswer] = weakref.WeakSet()
        """Answers to questions that came before the engine."""
        self._is_closed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Make the engine in the background."""
        self._is_over.clear()
        self._state = _STARTING
        threading.Thread(target=self._start, name="engine-start", daemon=True).start()

    def _start(self) -> None:
        try:
            engine = self._make()
        except Exception:
            logger.exception("the engine could not be started")
            self._state = ModelState("failed", _BROKEN)
        else:
            with self._lock:
                self._engine = engine
                is_closed = self._is_closed
            if is_closed:
                engine.close()
        self._is_over.set()

    def ask(self, request: AskRequest) -> Answer:
        """Queue a question, also before the engine is there. Raises BusyError."""
        engine = self._engine
        if engine is not None:
            return engine.ask(request)
        if self._waiting >= self._queue_size:
            raise BusyError(
                f"{self._waiting} questions are waiting already and the limit is "
                f"{self._queue_size}. Try again in a minute."
            )
        return self._wait_with(_LateAnswer(self, request))

    def read_ahead(self, request: AskRequest) -> Answer:
        """Read pictures before the question, once the engine is there."""
        engine = self._engine
        if engine is not None:
            return engine.read_ahead(request)
        return self._wait_with(_LateAnswer(self, request, is_ahead=True))

    def _wait_with(self, answer: _LateAnswer) -> _LateAnswer:
        with self._lock:
            self._early.add(answer)
        return answer

    def state(self) -> ModelState:
        """Say where the model is; never blocks."""
        return self._state if self._engine is None else self._engine.state()

    def memory(self) -> MemoryReading:
        """Read memory and CPU use; before the engine is there nothing is cached."""
        if self._engine is not None:
            return self._engine.memory()
        now = self._probe.read()
        return MemoryReading(
            rss_bytes=now.rss_bytes,
            peak_rss_bytes=now.peak_rss_bytes,
            weights_bytes=0,
            kv_cache_bytes=0,
            feature_cache_bytes=0,
            available_bytes=now.free.available_bytes,
            total_bytes=now.free.total_bytes,
            is_container_limit=now.free.is_container_limit,
            cpu_percent=now.cpu_percent,
            cores=now.cores,
            conversations=0,
        )

    def rates(self) -> Rates:
        """Say how fast answers came lately; before the engine nothing was measured."""
        return Rates() if self._engine is None else self._engine.rates()

    def forget(self, conversation_id: str) -> None:
        """Stop and drop all that is kept for a conversation, questions before the engine too."""
        with self._lock:
            early = [answer for answer in self._early if answer.conversation_id == conversation_id]
        for answer in early:
            answer.stop()
        if self._engine is not None:
            self._engine.forget(conversation_id)

    def free_caches(self) -> int:
        """Drop the engine's caches; before it is there nothing is cached."""
        return 0 if self._engine is None else self._engine.free_caches()

    def retry_load(self) -> None:
        """Try again what failed: making the engine, or loading its model."""
        if self._engine is not None:
            self._engine.retry_load()
        elif self._state.stage == "failed":
            self.start()

    def close(self) -> None:
        """Stop all work and end the engine."""
        with self._lock:
            self._is_closed = True
            engine = self._engine
        self._state = _CLOSED
        if engine is not None:
            engine.close()
        self._is_over.set()

    @contextmanager
    def queue_place(self) -> Iterator[None]:
        """Count one question more while it waits."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def wait(self, timeout_s: float) -> bool:
        """Wait until the engine is there or will never be; False when the time is up."""
        return self._is_over.wait(timeout_s)

    def engine(self) -> ChatEngine:
        """The engine that was waited for. Raises GenerationError when there is none."""
        if self._engine is None:
            raise GenerationError(self._state.message)
        return self._engine


class _LateAnswer:
    """An answer to a question that came before the engine."""

    def __init__(self, late: LateEngine, request: AskRequest, is_ahead: bool = False) -> None:
        self._late = late
        self._request = request
        self._is_ahead = is_ahead
        self._clock = AnswerClock()
        self._answer: Answer | None = None
        self._is_stopped = threading.Event()

    @property
    def conversation_id(self) -> str:
        """The chat that asked."""
        return self._request.conversation_id

    def __iter__(self) -> Iterator[Piece]:
        """Yield heartbeats until the engine is there, then its pieces. Raises VLMError."""
        with nullcontext() if self._is_ahead else self._late.queue_place():
            yield Piece("loading")
            while not self._late.wait(_HEARTBEAT_S) and not self._is_stopped.is_set():
                yield Piece("loading")
        if self._is_stopped.is_set():
            yield Piece("done", stats=self._clock.stats("cancelled"))
            return
        engine = self._late.engine()
        begin = engine.read_ahead if self._is_ahead else engine.ask
        self._answer = begin(self._request)
        if self._is_stopped.is_set():
            self._answer.stop()
        yield from self._answer

    def stop(self) -> None:
        """End the wait or the work."""
        self._is_stopped.set()
        if self._answer is not None:
            self._answer.stop()
