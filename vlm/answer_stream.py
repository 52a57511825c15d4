"""Carry one answer from the model's thread to the person who asked, and their Stop back.

The model's thread never waits for a reader, a reader never waits long for the model:
pieces pile up (and merge) on one side, a heartbeat is made up on the other.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

from vlm.chat import AnswerStats, AskRequest, Piece
from vlm.errors import Stopped, VLMError
from vlm.stats import AnswerClock

HEARTBEAT_S = 0.5
"""Longest silence of a stream. A generator cannot be closed while it waits, so this also
bounds how late a closed tab is noticed."""

ABANDONED_S = 60.0
"""A stream nobody has read for this long has lost its reader without saying so."""


class Job:
    """One request inside the engine: its stream, its clock and its stop flag.

    Every method may be called from any thread.
    """

    def __init__(
        self,
        request: AskRequest,
        describe_wait: Callable[[Job], Piece],
        on_stop: Callable[[Job], None],
        abandoned_s: float = ABANDONED_S,
        is_ahead: bool = False,
    ) -> None:
        """Start the clock of a request.

        is_ahead: only read the pictures; the question comes later.
        """
        self.request = request
        self.is_ahead = is_ahead
        self.clock = AnswerClock()
        self._describe_wait = describe_wait
        self._on_stop = on_stop
        self._abandoned_s = abandoned_s
        self._changed = threading.Condition()
        self._unread: list[Piece] = []
        self._last: Piece | None = None
        self._end: Piece | VLMError | None = None
        self._is_stopped = False
        self._last_read_at = time.monotonic()

    @property
    def is_stopped(self) -> bool:
        """True once somebody asked for the end, or nobody reads any more."""
        return self._is_stopped or time.monotonic() - self._last_read_at > self._abandoned_s

    @property
    def is_over(self) -> bool:
        """True once the stream has its last piece or its error."""
        return self._end is not None

    def check(self) -> None:
        """Raise Stopped when the work has to end; called between layers and tokens."""
        if self.is_stopped:
            raise Stopped

    def stop(self) -> None:
        """Ask for the end of the work; returns at once, harmless when it is over."""
        self._is_stopped = True
        if not self.is_over:
            self._on_stop(self)

    def abandon(self) -> None:
        """Ask for the end of work nobody waits for; takes no lock, so the collector may call."""
        self._is_stopped = True

    def emit(self, piece: Piece) -> None:
        """Hand a piece to the reader; pieces not read yet merge within their stage."""
        with self._changed:
            if self._unread and self._unread[-1].stage == piece.stage:
                piece = _merge(self._unread.pop(), piece)
            self._unread.append(piece)
            self._last = replace(piece, text="", notices=())
            self._changed.notify_all()

    def finish(self, stats: AnswerStats) -> None:
        """End the stream with the piece "done"; the first end given counts."""
        self._give_end(Piece("done", progress=1.0, stats=stats))

    def fail(self, error: VLMError) -> None:
        """End the stream with an error equal to this one, raised where it is read.

        Not with itself: one that was raised keeps tensors alive through its traceback.
        """
        self._give_end(type(error)(*error.args))

    def _give_end(self, end: Piece | VLMError) -> None:
        with self._changed:
            if self._end is None:
                self._end = end
                self._changed.notify_all()

    def read(self, timeout_s: float) -> Piece:
        """Return the next piece, or a heartbeat when none comes in time. Raises VLMError."""
        with self._changed:
            self._last_read_at = time.monotonic()
            self._changed.wait_for(lambda: self._unread or self._end is not None, timeout_s)
            self._last_read_at = time.monotonic()
            if self._unread:
                return self._unread.pop(0)
            if isinstance(self._end, VLMError):
                raise self._end
            if self._end is not None:
                return self._end
            last = self._last
        return self._describe_wait(self) if last is None else last


class AnswerStream:
    """The Answer a person holds; when they lose hold of it, the work is stopped."""

    def __init__(self, job: Job, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._job = job
        self._heartbeat_s = heartbeat_s
        weakref.finalize(self, job.abandon).atexit = False

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces until "done", at least every heartbeat. Raises VLMError."""
        job = self._job
        timeout_s = 0.0  # the first piece says at once what the wait is for
        try:
            while True:
                piece = job.read(timeout_s)
                yield piece
                if piece.stage == "done":
                    return
                timeout_s = self._heartbeat_s
        finally:
            job.abandon()

    def stop(self) -> None:
        """End the work within 0.3 s; the stream still yields "done" (cancelled)."""
        self._job.stop()


def _merge(first: Piece, second: Piece) -> Piece:
    return replace(second, text=first.text + second.text, notices=first.notices + second.notices)
