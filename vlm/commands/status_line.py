"""One line in the terminal that says what is being waited for."""

from __future__ import annotations

import time
from typing import TextIO

from vlm.chat import ModelState, Piece
from vlm.units import format_bytes

_WAITS = {
    "loading": "Loading the model",
    "queued": "Waiting",
    "vision": "Looking at the picture",
    "prefill": "Reading the question",
}


class StatusLine:
    """One line on stderr that changes in place on a terminal, and only grows elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self._shown = ""

    def show_model(self, state: ModelState) -> None:
        """Show where the model is on its way."""
        self._replace(_describe_model(state) if self.is_terminal else state.message)

    def show(self, piece: Piece) -> None:
        """Show what the answer waits for, and its notices."""
        for notice in piece.notices:
            self.note(notice)
        if piece.stage in _WAITS:
            self._replace(_describe(piece, with_percent=self.is_terminal))
        else:
            self.clear()

    def show_done(self, line: str) -> None:
        """Show how much of a longer work is done."""
        self._replace(line)

    def note(self, notice: str) -> None:
        """Write something that stays."""
        self.clear()
        self._stream.write(f"Note: {notice}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away before other text comes."""
        if self.is_terminal and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = ""

    def _replace(self, line: str) -> None:
        if line == self._shown:
            return
        self._shown = line
        self._stream.write(f"\r\x1b[K{line}" if self.is_terminal else f"{line}\n")
        self._stream.flush()


def _describe(piece: Piece, with_percent: bool) -> str:
    words = _WAITS[piece.stage]
    if piece.stage == "queued" and piece.queue_position:
        words = f"{words}, {piece.queue_position} ahead"
    return f"{words} {piece.progress:.0%}" if with_percent and piece.progress else words


def _describe_model(state: ModelState) -> str:
    words = state.message
    if state.total_bytes:
        done, total = format_bytes(state.done_bytes), format_bytes(state.total_bytes)
        words = (
            f"{words.rstrip('.')}: {state.done_bytes / state.total_bytes:.0%}, {done} of {total}"
        )
    if state.eta_s is not None:
        words += f", about {time.strftime('%H:%M:%S', time.gmtime(state.eta_s))} left"
    return words
