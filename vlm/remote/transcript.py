"""Follow one answer of a server: its words, its end, and what of it could be measured here.

What a server does not tell stays 0: nothing is guessed from the number of its packets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlm.answer_stream import Job
from vlm.chat import AnswerStats, FinishReason, Piece
from vlm.remote.faults import Asked, stream_error
from vlm.remote.stream import Part, WholeCharacters, read_part

BURST_S = 0.05
"""Words that all came within so short a time were held up on the way: no rate of writing."""


class Transcript:
    """What a server has said to one question, handed on to the one who asked."""

    def __init__(self, job: Job, asked: Asked) -> None:
        self._job = job
        self._asked = asked
        self._characters = WholeCharacters()
        self._first_at: float | None = None
        """When the first word came, of a thought or of the answer."""
        self._last_at = 0.0
        self._counted = Part()
        """The last event that held token counts."""
        self._finish_reason: str | None = None
        self._has_thoughts = False
        self.has_text = False

    @property
    def is_finished(self) -> bool:
        """Whether the server said why its answer ended."""
        return self._finish_reason is not None

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event. Raises VLMError for a server's own error before the first word."""
        part = read_part(event)
        if part.error is not None:
            error = stream_error(part.error, self._asked)
            if not self.has_text:
                raise error
            self.break_off(str(error))
            return
        self._finish_reason = part.finish_reason or self._finish_reason
        if part.prompt_tokens or part.completion_tokens:
            self._counted = part
        self._has_thoughts = self._has_thoughts or part.has_thought
        if part.text or part.has_thought:
            self._last_at = time.perf_counter()
            self._first_at = self._first_at or self._last_at
        if text := self._characters.push(part.text):
            if not self.has_text:
                self._job.clock.token()
            self.has_text = True
            self._job.emit(Piece("decode", text=text))

    def break_off(self, why: str) -> None:
        """Keep what came, and say why no more of it will come."""
        self._finish_reason = "cancelled"
        self.say(f"{why} The answer above is not whole.")

    def say(self, notice: str) -> None:
        """Tell the person something beside the answer."""
        self._job.emit(Piece("decode", notices=(notice,)))

    def finish(self) -> AnswerStats:
        """Return what the whole answer cost; tells of an end that needs a word."""
        if self._finish_reason == "content_filter":
            self.say(f"A filter of {self._asked.address.host} ended this answer.")
        if self._has_thoughts and not self.has_text:
            self.say("The model only thought and wrote no answer. Allow a longer answer.")
        reason: FinishReason = "stop"
        if self._finish_reason == "length":
            reason = "length"
        elif self._finish_reason == "cancelled":
            reason = "cancelled"
        return self.stats(reason)

    def stats(self, reason: FinishReason) -> AnswerStats:
        """Return what is known so far."""
        counted = self._counted
        return replace(
            self._job.clock.stats(reason),
            prompt_tokens=counted.prompt_tokens,
            visual_tokens=counted.visual_tokens,
            cached_tokens=counted.cached_tokens,
            new_tokens=counted.completion_tokens,
            decode_tps=self._decode_tps(),
        )

    def _decode_tps(self) -> float:
        took_s = self._last_at - (self._first_at or self._last_at)
        if took_s < BURST_S or self._counted.completion_tokens < 2:
            return 0.0
        return (self._counted.completion_tokens - 1) / took_s
