"""Measure how many tokens a second several conversations get together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerSpan:
    """When the tokens of one answer came, in seconds of time.perf_counter."""

    first_at: float
    last_at: float
    tokens: int


def chats_tps(ask: Callable[[int], AnswerSpan], chats: int, rounds: int) -> dict[str, float | None]:
    """Return tokens per second of all conversations together, by their number; the best round.

    `ask(i)` asks conversation i and returns when its answer has ended. What it asks must be
    read already, so that hardly anything but decoding is timed; answers then hold many tokens.
    """
    rates: dict[str, float | None] = {"1": None, "4": None}
    for together in sorted({1, chats} if chats > 1 else {1}):
        measured = [_ask_together(ask, together) for _ in range(rounds)]
        rates[str(together)] = max((rate for rate in measured if rate is not None), default=None)
    return rates


def _ask_together(ask: Callable[[int], AnswerSpan], together: int) -> float | None:
    with ThreadPoolExecutor(together, thread_name_prefix="chat") as pool:
        return total_tps(list(pool.map(ask, range(together))))


def total_tps(spans: Sequence[AnswerSpan]) -> float | None:
    """Return tokens after the very first, over the time from it to the very last.

    Of one answer this is its decode_tps. None when an answer is too short to be timed.
    """
    if not spans or min(span.tokens for span in spans) < 2:
        return None
    took_s = max(span.last_at for span in spans) - min(span.first_at for span in spans)
    return (sum(span.tokens for span in spans) - 1) / took_s if took_s > 0 else None
