"""The memory panel beside the chat, as HTML: this process, the machine, the precision."""

from __future__ import annotations

import html

from vlm.chat import MemoryReading, ModelState
from vlm.ui.chinese import in_language
from vlm.ui.texts import Texts
from vlm.units import format_bytes


def panel_html(reading: MemoryReading, state: ModelState, texts: Texts) -> str:
    """Show a reading as a stacked bar with a legend, and what runs."""
    place = texts.container if reading.is_container_limit else texts.machine
    free = texts.free_of.format(
        free=format_bytes(reading.available_bytes), total=format_bytes(reading.total_bytes)
    )
    cpu = texts.cores.format(percent=f"{reading.cpu_percent:.0f}", cores=reading.cores)
    reason = in_language(state.precision_reason, texts.language)
    rows = [
        (place, free, ""),
        (texts.cpu, cpu, ""),
        (texts.model, state.model or texts.not_known, ""),
        (texts.precision, state.precision or texts.not_known, reason),
        (texts.conversations, str(reading.conversations), ""),
    ]
    return (
        f'<section class="panel" aria-label="{html.escape(texts.memory)}">'
        f"<h2>{html.escape(texts.memory)}</h2>{_stacked_bar(reading, texts)}"
        f"<dl>{''.join(_row(*row) for row in rows)}</dl></section>"
    )


def _stacked_bar(reading: MemoryReading, texts: Texts) -> str:
    """Draw the parts of this process against all memory there is."""
    total = max(reading.total_bytes, reading.rss_bytes, 1)
    segments, legend = [], []
    for name, label, size in memory_parts(reading, texts):
        segments.append(f'<i class="{name}" style="width:{100 * size / total:.2f}%"></i>')
        legend.append(
            f'<li><i class="{name}" aria-hidden="true"></i>{html.escape(label)} '
            f"<b>{format_bytes(size)}</b></li>"
        )
    used = html.escape(texts.process.format(size=format_bytes(reading.rss_bytes)))
    return (
        f'<p class="used">{used}</p>'
        f'<div class="stacked" role="img" aria-label="{used}">{"".join(segments)}</div>'
        f'<ul class="legend">{"".join(legend)}</ul>'
    )


def memory_parts(reading: MemoryReading, texts: Texts) -> list[tuple[str, str, int]]:
    """Split the resident bytes of this process; the parts add up to them.

    Weights mapped from a file may not all be resident, so each part takes what is left.
    """
    left = reading.rss_bytes
    parts = []
    for name, label, size in (
        ("kv", texts.kv_caches, reading.kv_cache_bytes),
        ("pictures", texts.pictures, reading.feature_cache_bytes),
        ("weights", texts.weights, reading.weights_bytes),
    ):
        part = max(0, min(size, left))
        left -= part
        parts.append((name, label, part))
    kv, pictures, weights = parts
    return [weights, kv, pictures, ("rest", texts.rest, left)]


def _row(label: str, value: str, hint: str) -> str:
    small = f"<small>{html.escape(hint)}</small>" if hint else ""
    return f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}{small}</dd></div>"
