"""Say what a question waits for, how far that is and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable

from vlm.chat import Piece, Rates
from vlm.ui.pace import LEAST_S, Pace
from vlm.ui.texts import Texts, about

QUIET_S = 1.5
"""An answer that gets no text for so long says that it is still being written."""


class Wait:
    """The wait of one question, from its start to its last word."""

    def __init__(self, rates: Callable[[], Rates]) -> None:
        """Start the clock; `rates` tells what was measured so far."""
        self._rates = rates
        self._asked_at_s = self._wrote_at_s = time.monotonic()
        self._written = 0
        self._stage = ""
        self._pace = Pace()
        self._place = 0
        self._turn_at_s: float | None = None

    def describe(self, piece: Piece, written: int, texts: Texts) -> str:
        """Say what is waited for; empty while text comes.

        written: characters of the answer so far.
        """
        now_s = time.monotonic()
        if written != self._written:
            self._written, self._wrote_at_s = written, now_s
        if written and now_s - self._wrote_at_s < QUIET_S:
            return ""
        self._note(piece, now_s)
        left_s = self._left_s(piece, now_s)
        words = _words(piece, texts)
        if left_s is not None:
            form = texts.about_wait if piece.stage == "queued" else texts.about_left
            words += form.format(time=about(left_s, texts))
        return f"{words} · {texts.waited.format(seconds=int(now_s - self._asked_at_s))}"

    def _note(self, piece: Piece, now_s: float) -> None:
        if piece.stage != self._stage:
            self._stage, self._pace = piece.stage, Pace()
        if piece.stage in ("vision", "prefill"):
            self._pace.note(piece.progress, now_s)
        place = piece.queue_position if piece.stage == "queued" else 0
        if place != self._place:
            self._place = place
            turn_s = self._rates().turn_s
            self._turn_at_s = None if turn_s is None else now_s + place * turn_s

    def _left_s(self, piece: Piece, now_s: float) -> float | None:
        if piece.stage != "queued":
            return self._pace.left_s(now_s)
        if not self._place or self._turn_at_s is None or self._turn_at_s - now_s < LEAST_S:
            return None
        return self._turn_at_s - now_s


def _words(piece: Piece, texts: Texts) -> str:
    percent = round(100 * piece.progress)
    if piece.stage == "queued" and piece.queue_position > 1:
        return texts.queued.format(ahead=piece.queue_position)
    return {
        "queued": texts.queued_next if piece.queue_position else texts.wait_begin,
        "loading": texts.wait_loading,
        "vision": texts.wait_vision.format(percent=percent),
        "prefill": texts.wait_prefill.format(percent=percent),
    }.get(piece.stage, texts.wait_decode)
