"""The quiet line under the chat: what the last answer cost, and on a click every answer."""

from __future__ import annotations

import html
from collections.abc import Sequence

from vlm.chat import AnswerStats
from vlm.ui.conversation import Turn
from vlm.ui.texts import Texts


def answer_line(turns: Sequence[Turn], texts: Texts) -> str:
    """Build the line as HTML; empty while there is nothing to tell."""
    told = [(number, turn.stats) for number, turn in enumerate(turns, 1) if turn.stats]
    if not told:
        return ""
    rows = "".join(_row(number, stats, texts) for number, stats in told)
    columns = (
        texts.column_answer,
        texts.column_queue,
        texts.column_vision,
        texts.column_prefill,
        texts.column_first,
        texts.column_speed,
        texts.column_prompt,
        texts.column_new,
        texts.column_end,
    )
    heads = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    return (
        f'<details class="answer-line"><summary>{html.escape(_summary(told[-1][1], texts))}'
        f'</summary><div class="answer-table"><table aria-label="{html.escape(texts.answers)}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _summary(stats: AnswerStats, texts: Texts) -> str:
    if _is_of_server(stats):
        return _server_summary(stats, texts)
    parts = []
    if stats.new_tokens:
        times = {"time": stats.ttft_s, "vision": stats.vision_s, "prefill": stats.prefill_s}
        said = {name: format_seconds(seconds) for name, seconds in times.items()}
        parts.append(texts.first_word.format(**said))
    if stats.decode_tps:
        parts.append(texts.speed.format(speed=format_speed(stats.decode_tps)))
    parts.append(
        texts.token_counts.format(
            visual=stats.visual_tokens, new=stats.new_tokens, reused=stats.cached_tokens
        )
    )
    parts.append(texts.end(stats.finish_reason))
    return " · ".join(parts)


def _is_of_server(stats: AnswerStats) -> bool:
    """Whether the words came from a server: here no prompt is read in no time."""
    return bool(stats.ttft_s) and not stats.prefill_s and not stats.vision_s


def _server_summary(stats: AnswerStats, texts: Texts) -> str:
    """Say what was measured here, and what the server counted."""
    parts = [texts.first_word_of_server.format(time=format_seconds(stats.ttft_s))]
    if stats.decode_tps:
        parts.append(texts.speed.format(speed=format_speed(stats.decode_tps)))
    if stats.prompt_tokens and stats.new_tokens:
        counts = {"prompt": stats.prompt_tokens, "new": stats.new_tokens}
        parts.append(texts.token_counts_of_server.format(**counts))
    return " · ".join([*parts, texts.end(stats.finish_reason)])


def _row(number: int, stats: AnswerStats, texts: Texts) -> str:
    first_word = format_seconds(stats.ttft_s) if stats.new_tokens else "–"
    prompt = f"{stats.prompt_tokens} ({stats.visual_tokens}, {stats.cached_tokens})"
    cells = [
        str(number),
        format_seconds(stats.queue_s),
        format_seconds(stats.vision_s),
        format_seconds(stats.prefill_s),
        first_word,
        format_speed(stats.decode_tps) if stats.decode_tps else "–",
        prompt,
        str(stats.new_tokens),
        texts.end(stats.finish_reason),
    ]
    if _is_of_server(stats):  # a 0 would say that something was measured or counted
        cells[2] = cells[3] = "–"
        cells[4] = format_seconds(stats.ttft_s)
        cells[6] = str(stats.prompt_tokens or "–")
        cells[7] = str(stats.new_tokens or "–")
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def format_seconds(seconds: float) -> str:
    """Write a duration for people: "40 ms", "1.2 s", "3 min 05 s"."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_speed(tps: float) -> str:
    """Write tokens per second with two digits or so: "8.3", "120"."""
    return f"{tps:.1f}" if tps < 99.5 else f"{tps:.0f}"
