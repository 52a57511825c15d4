"""One chat: its turns, the answer that is being written, and what the model is told of it.

The history holds raw text and exact token ids; what is shown is derived elsewhere.
Holds no Gradio values.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from weakref import WeakSet

from vlm.chat import Answer, AnswerStats, FinishReason, Message
from vlm.ui.thumbnails import remove_thumbnails

TurnEnd = Literal["running", "failed", "stop", "length", "cancelled", "loop"]


@dataclass(eq=False)
class Turn:
    """A question and the answer to it, as far as it has come."""

    question: Message
    uploads: tuple[str, ...] = ()
    """Paths of the pictures as they were sent, to fill the input again."""
    thumbnails: tuple[Path, ...] = ()
    """One picture file each, upright and small, to show."""
    answer: str = ""
    stats: AnswerStats | None = None
    notices: list[str] = field(default_factory=list)
    end: TurnEnd = "running"
    error: str = ""
    """Why there is no answer, in words for people; with end "failed"."""
    is_given_back: bool = False
    """True once a failed question was put back into the input."""

    def reply(self) -> Message:
        """The answer as a message of the history, with its exact ids where they are known."""
        token_ids = self.stats.token_ids if self.stats else None
        return Message("assistant", self.answer, token_ids=token_ids)


class Conversation:
    """The turns of one chat; safe to use from several threads."""

    def __init__(self, turns: Sequence[Turn] = (), kept_id: str = "") -> None:
        """Start empty, or with turns of a kept chat and its id in the browser's list."""
        self.id = uuid.uuid4().hex
        self.kept_id = kept_id or uuid.uuid4().hex
        self.turns = list(turns)
        self._cut: WeakSet[Turn] = WeakSet()
        self.visitor = ""
        """Who asked last, as AskRequest.visitor."""
        self._running: Answer | None = None
        self._is_stop_wanted = False
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def picture_bytes(self) -> int:
        """Bytes of the decoded pictures of all turns."""
        pictures = (picture for turn in self.turns for picture in turn.question.pictures)
        return sum(3 * picture.image.width * picture.image.height for picture in pictures)

    @property
    def is_busy(self) -> bool:
        """True while an answer is asked for or written."""
        return bool(self.turns) and self.turns[-1].end == "running"

    @property
    def is_closed(self) -> bool:
        """True once the chat was cleared or its page closed: nothing shows it any more."""
        return self._is_closed

    def begin(self, turn: Turn, instead_of: Turn | None = None) -> bool:
        """Add a turn, unless an answer is being written or the chat is closed.

        `instead_of` is an earlier turn that this one replaces; what came after it goes as well.
        A failed turn at the end makes place: it never was part of the history. The small
        copies of pictures go with the turns that are no longer shown, a refused one included.
        """
        with self._lock:
            is_taken = not self._is_closed and not self.is_busy
            gone = [turn]
            if is_taken:
                kept = self._answered()
                if instead_of in self.turns:
                    earlier = self.turns[: self.turns.index(instead_of)]
                    kept = [one for one in kept if one in earlier]
                gone = [one for one in self.turns if one not in kept]
                self.turns = [*kept, turn]
                self._is_stop_wanted = False
        for one in gone:
            remove_thumbnails(one.thumbnails)
        return is_taken

    def begin_again(self) -> Turn | None:
        """Start the last turn anew without its answer; None when there is none to start."""
        with self._lock:
            if self._is_closed or self.is_busy or not self.turns:
                return None
            last = self.turns[-1]
            again = Turn(last.question, last.uploads, last.thumbnails)
            self.turns = [*self.turns[:-1], again]
            self._is_stop_wanted = False
            return again

    def take_back(self) -> Turn | None:
        """Remove and return the last turn; None when there is none or it is being answered."""
        with self._lock:
            if self._is_closed or self.is_busy or not self.turns:
                return None
            *self.turns, last = self.turns
            return last

    def leave_out(self, turns: Sequence[Turn]) -> bool:
        """Drop turns from anywhere, so that the rest has room; False while one is answered."""
        with self._lock:
            if self._is_closed or self.is_busy:
                return False
            self.turns = [turn for turn in self.turns if turn not in turns]
            self._cut.update(self.turns)
        for turn in turns:
            remove_thumbnails(turn.thumbnails)
        return True

    def was_cut(self, turn: Turn) -> bool:
        """Whether turns before this one were dropped after it was answered."""
        return turn in self._cut

    def messages(self) -> tuple[Message, ...]:
        """What the model is told: all answered turns, then the question that is open."""
        told: list[Message] = []
        for turn in self._answered():
            told.append(turn.question)
            if turn.end != "running":
                told.append(turn.reply())
        return tuple(told)

    def attach(self, answer: Answer) -> None:
        """Remember the running answer so that it can be stopped; Stop may have come before."""
        with self._lock:
            self._running = answer
            is_stop_wanted = self._is_stop_wanted
        if is_stop_wanted:
            answer.stop()

    def finish(self, turn: Turn, end: FinishReason | Literal["failed"], error: str = "") -> None:
        """Close a turn; the first end given counts."""
        with self._lock:
            if turn.end == "running":
                turn.end, turn.error = end, error
                self._running = None

    def stop(self) -> bool:
        """Ask the running answer to end; False when none is running."""
        with self._lock:
            self._is_stop_wanted = self.is_busy
            running = self._running
        if running is not None:
            running.stop()
        return self._is_stop_wanted

    def close(self) -> None:
        """Stop the work and take no more turns."""
        with self._lock:
            self._is_closed = True
        self.stop()

    def _answered(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.end != "failed"]
