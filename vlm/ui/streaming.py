"""Take an answer's pieces into its turn, as often as the page should change."""

from __future__ import annotations

import time
from collections.abc import Iterator

from vlm.chat import Answer, Piece
from vlm.ui.conversation import Conversation, Turn

SHOWN_EVERY_S = 0.1
"""Pause between two updates of a streaming answer; faster than that nobody reads."""


def read_pieces(answer: Answer, turn: Turn, chat: Conversation) -> Iterator[Piece]:
    """Put an answer's pieces into the turn; yield those at which the page should change.

    Raises VLMError, and RuntimeError for a stream without its last piece.
    """
    shown_at_s, shown_stage = 0.0, ""
    for piece in answer:
        turn.answer += piece.text
        turn.notices += [notice for notice in piece.notices if notice not in turn.notices]
        if piece.stats is not None:
            turn.stats = piece.stats
            chat.finish(turn, piece.stats.finish_reason)
        now_s = time.monotonic()
        is_due = piece.stage != shown_stage or now_s - shown_at_s >= SHOWN_EVERY_S
        if is_due and turn.end == "running" and not chat.is_closed:
            shown_at_s, shown_stage = now_s, piece.stage
            yield piece
    if turn.end == "running":
        raise RuntimeError("the engine's stream ended without its last piece")
