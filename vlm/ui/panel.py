"""The panel beside the chat, as HTML: this process, its last two minutes, the model."""

from __future__ import annotations

import html
from collections.abc import Sequence

from vlm.chat import MemoryReading, ModelState
from vlm.ui.chinese import in_language
from vlm.ui.readings import Point
from vlm.ui.sparkline import sparkline
from vlm.ui.texts import Texts
from vlm.units import format_bytes


def panel_html(
    reading: MemoryReading, state: ModelState, texts: Texts, points: Sequence[Point] = ()
) -> str:
    """Show a reading as a stacked bar with a legend, those before it as lines, and what runs."""
    place = texts.container if reading.is_container_limit else texts.machine
    free = texts.free_of.format(
        free=format_bytes(reading.available_bytes), total=format_bytes(reading.total_bytes)
    )
    reason = in_language(state.precision_reason, texts.language)
    rows = [
        (place, free, ""),
        (texts.model, state.model or texts.not_known, _model_size(reading, state, texts)),
        (texts.precision, state.precision or texts.not_known, reason),
        (texts.conversations, str(reading.conversations), ""),
    ]
    if state.server:  # how it computes and what it keeps is not known here
        rows[2:] = [(texts.server, state.server, texts.server_hint)]
    return (
        f'<section class="panel" aria-label="{html.escape(texts.memory)}">'
        f"<h2>{html.escape(texts.memory)}</h2>{_stacked_bar(reading, texts)}"
        f"{_lines(reading, points, texts)}"
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


def _lines(reading: MemoryReading, points: Sequence[Point], texts: Texts) -> str:
    """Draw memory and CPU over the last two minutes, each with what it is now."""
    now = format_bytes(reading.rss_bytes)
    most = max((point.rss_bytes for point in points), default=reading.rss_bytes)
    percent = f"{reading.cpu_percent:.0f}"
    cpu = texts.cores.format(percent=percent, cores=reading.cores)
    memory_label = texts.memory_line.format(now=now, most=format_bytes(most))
    memory = sparkline(((p.age_s, p.rss_bytes) for p in points), most * 1.1, memory_label)
    load_label = texts.cpu_line.format(percent=percent)
    load = sparkline(((p.age_s, p.cpu_percent) for p in points), 100, load_label)
    captions = ((memory, texts.memory, now), (load, texts.cpu, cpu))
    figures = "".join(
        f"<figure>{line}<figcaption>{html.escape(name)} <b>{html.escape(value)}</b></figcaption>"
        "</figure>"
        for line, name, value in captions
    )
    return f'<div class="lines" title="{html.escape(texts.two_minutes)}">{figures}</div>'


def _model_size(reading: MemoryReading, state: ModelState, texts: Texts) -> str:
    """Say how large the model is; nothing before it is loaded."""
    if not state.parameters:
        return ""
    count = state.parameters / 1e9
    short = f"{count:.1f}B" if count >= 1 else f"{count * 1000:.0f}M"
    size = format_bytes(reading.weights_bytes)
    return texts.model_size.format(count=short, size=size)


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
