"""The quiet line under the input: what the question will cost, or why it does not fit."""

from __future__ import annotations

import html

from vlm.chat import Rates
from vlm.ui.estimate import Cost, Reading, Trouble
from vlm.ui.texts import Texts, about
from vlm.units import format_bytes

LONG_S = 1.0
"""A question without pictures is told of only when it takes so long to read."""


def cost_line(cost: Cost, rates: Rates, reading: Reading | None, texts: Texts) -> str:
    """Say what a question costs as HTML; empty where there is nothing to tell.

    `reading`: how far its pictures are read, when they are being read.
    """
    parts = [_pictures(cost, texts)] if cost.question.sizes else []
    first_word_s = cost.first_word_s(rates)
    is_moving = reading is not None and not reading.is_done
    if reading is not None and is_moving:
        words = texts.cost_reading.format(percent=round(100 * reading.progress))
        if reading.left_s is not None:
            words += texts.about_left.format(time=about(reading.left_s, texts))
        parts.append(words)
    elif cost.question.is_read:
        parts.append(texts.cost_read)
    if first_word_s is not None and not is_moving and (parts or first_word_s >= LONG_S):
        is_soon = cost.question.is_read and first_word_s < LONG_S
        words = texts.cost_at_once if is_soon else texts.cost_first
        parts.append(words.format(time=about(first_word_s, texts)))
    return _line(" · ".join(parts), "", role="" if is_moving else "status")


def trouble_line(cost: Cost, trouble: Trouble, spare_bytes: int, texts: Texts) -> str:
    """Say as HTML why a question does not fit."""
    words = getattr(texts, f"cost_{trouble}").format(
        used=cost.prompt_tokens,
        limit=cost.capacity.context_tokens,
        left=cost.answer_room,
        need=format_bytes(cost.need_bytes),
        free=format_bytes(spare_bytes),
    )
    return _line(words, " warning", role="alert")


def _pictures(cost: Cost, texts: Texts) -> str:
    sizes = cost.question.sizes
    if len(sizes) > 1:
        return texts.cost_pictures.format(count=len(sizes), visual=cost.visual_tokens)
    width, height = sizes[0]
    return texts.cost_picture.format(width=width, height=height, visual=cost.visual_tokens)


def _line(words: str, kind: str, role: str) -> str:
    """Show words; only what comes to rest is read out by screen readers."""
    told = f' role="{role}"' if role else ""
    return f'<div class="cost{kind}"{told}>{html.escape(words)}</div>' if words else ""
