"""Ask about many pictures, as many at once as the engine answers together.

Each picture becomes one row, written by the thread that has its answer: only the main thread is
interrupted by Ctrl-C, so no row is ever cut by it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlm.chat import Answer, AnswerStats, AskRequest, ChatEngine
from vlm.commands.asking import result_of
from vlm.commands.batch_blank import why_blank
from vlm.errors import PictureError, PromptError, VLMError
from vlm.images import Picture

logger = logging.getLogger(__name__)

ANSWERED, SKIPPED, UNREADABLE, FAILED = "answered", "skipped", "unreadable", "failed"
"""What may become of a picture. Failed: not for its own sake, so that it is asked again."""
_BROKE = "The answer could not be computed because of an unexpected fault; the log has it."


@dataclass(frozen=True)
class Work:
    """How a picture becomes a row."""

    engine: ChatEngine
    open_file: Callable[[str], Picture]
    make_request: Callable[[str, Picture], AskRequest]
    """From a conversation's id and a picture."""
    write: Callable[[dict[str, Any]], None]
    """Writes a row; raises VLMError when that is impossible."""
    asked: dict[str, str]
    """What was asked: the fields that every row has after its file."""
    skip_blank: bool = False


@dataclass
class Batch:
    """Threads that turn files into rows; counts what became of them."""

    work: Work
    files: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    failure: BaseException | None = None
    """What ended all work, such as a full disk."""

    def __post_init__(self) -> None:
        """Start nothing yet."""
        self._next = iter(self.files)
        self._lock = threading.Lock()
        self._answers: set[Answer] = set()
        self._is_stopped = False
        self._threads: list[threading.Thread] = []

    @property
    def done(self) -> int:
        """Pictures that have their row."""
        return self.counts.total()

    def start(self, at_once: int) -> None:
        """Begin with so many pictures at once."""
        for number in range(min(at_once, len(self.files))):
            thread = threading.Thread(target=self._run, name=f"batch-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait so long at most; returns whether all work is over."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)
                return False
        return True

    def stop(self) -> None:
        """End soon: answers on their way are given up, rows being written are written."""
        with self._lock:
            self._is_stopped = True
            for answer in self._answers:
                answer.stop()

    def _run(self) -> None:
        try:
            for path in self._files():
                if (outcome := self._row_of(path)) is not None:
                    with self._lock:
                        self.counts[outcome] += 1
        except BaseException as error:  # the main thread tells it
            self.failure = self.failure or error
            self.stop()

    def _files(self) -> Iterator[str]:
        while True:
            with self._lock:
                path = None if self._is_stopped else next(self._next, None)
            if path is None:
                return
            yield path

    def _row_of(self, path: str) -> str | None:
        """Write a picture's row and say what became of it; None when it was given up."""
        row: dict[str, Any] = {"file": path, **self.work.asked}
        result: dict[str, Any]
        try:
            picture = self.work.open_file(path)
            if self.work.skip_blank and (reason := why_blank(picture.image)):
                outcome, result = SKIPPED, {"skipped": reason}
            else:
                text, stats, notices = self._ask(path, picture)
                if stats.finish_reason == "cancelled":
                    return None
                outcome, result = ANSWERED, result_of(self.work.engine, text, stats)
                result |= {"notices": notices} if notices else {}
        except (PictureError, PromptError) as error:
            outcome, result = UNREADABLE, {"error": str(error)}
        except VLMError as error:
            outcome, result = FAILED, {"error": str(error), "ask_again": True}
        except Exception:
            logger.exception("A picture could not be asked about: %s", path)
            outcome, result = FAILED, {"error": _BROKE, "ask_again": True}
        if outcome == FAILED and self._is_stopped:
            return None
        self.work.write(row | result)
        return outcome

    def _ask(self, path: str, picture: Picture) -> tuple[str, AnswerStats, list[str]]:
        """Read an answer to its end; returns its text, cost and notices. Raises VLMError."""
        engine = self.work.engine
        conversation_id = f"batch {path}"
        answer = engine.ask(self.work.make_request(conversation_id, picture))
        with self._lock:
            self._answers.add(answer)
            if self._is_stopped:
                answer.stop()
        texts: list[str] = []
        notices: list[str] = []
        try:
            for piece in answer:
                texts.append(piece.text)
                notices += piece.notices
                if piece.stats is not None:
                    return "".join(texts), piece.stats, notices
        finally:
            with self._lock:
                self._answers.discard(answer)
            engine.forget(conversation_id)  # its cache makes room for the next
        raise RuntimeError("an answer ended without saying what it cost")
