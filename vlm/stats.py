"""Measure answers: moments on a clock become AnswerStats, those of the last answers Rates.

Every figure is a difference of two clock readings or a count; nothing is estimated.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from vlm.chat import AnswerStats, FinishReason, Rates

REMEMBERED_ANSWERS = 9
"""Rates are those of so many last answers: enough to outvote an odd one, few enough to follow."""


@dataclass
class AnswerClock:
    """The moments of one answer, in seconds of a clock that never runs backwards."""

    submitted_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None
    """When the model's thread took the request out of the queue."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    vision_s: float = 0.0
    """Resizing, patching and encoding of the pictures."""
    prefill_s: float = 0.0
    """Forward of the prompt tokens that were not cached, and of nothing else."""
    prompt_tokens: int = 0
    visual_tokens: int = 0
    cached_tokens: int = 0
    encoded_tokens: int = 0
    """Visual tokens that went through the vision tower, not taken from a cache."""
    prefilled_tokens: int = 0
    """Prompt tokens that were really forwarded; fewer than planned after a stop."""
    sampled_tokens: int = 0
    """Tokens chosen, the stop token included: each of them cost a step."""

    def start(self) -> None:
        """Note that the wait in the queue is over."""
        self.started_at = time.perf_counter()

    @contextmanager
    def vision(self) -> Iterator[None]:
        """Add the time of the block to vision_s, also when it is stopped."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.vision_s += time.perf_counter() - began

    @contextmanager
    def prefill(self) -> Iterator[None]:
        """Add the time of the block to prefill_s, also when it is stopped."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.prefill_s += time.perf_counter() - began

    def token(self) -> None:
        """Note that a token was chosen just now."""
        now = time.perf_counter()
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        self.sampled_tokens += 1

    def stats(self, finish_reason: FinishReason, token_ids: tuple[int, ...] = ()) -> AnswerStats:
        """Return what was measured; an answer that ended early has zeros for what never began."""
        return AnswerStats(
            prompt_tokens=self.prompt_tokens,
            visual_tokens=self.visual_tokens,
            cached_tokens=self.cached_tokens,
            new_tokens=len(token_ids),
            queue_s=self._queue_s(),
            vision_s=self.vision_s,
            prefill_s=self.prefill_s,
            ttft_s=0.0 if self.first_token_at is None else self.first_token_at - self.submitted_at,
            prefill_tps=self.prefilled_tokens / self.prefill_s if self.prefill_s > 0 else 0.0,
            decode_tps=self._decode_tps(),
            finish_reason=finish_reason,
            token_ids=token_ids,
        )

    @property
    def decode_s(self) -> float:
        """Time from the first token to the last; 0.0 with fewer than two."""
        if self.first_token_at is None or self.last_token_at is None:
            return 0.0
        return self.last_token_at - self.first_token_at

    def _queue_s(self) -> float:
        ended_at = time.perf_counter() if self.started_at is None else self.started_at
        return ended_at - self.submitted_at

    def _decode_tps(self) -> float:
        return (self.sampled_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


class RateMeter:
    """The rates of the last answers; one thread notes, any thread reads."""

    def __init__(self) -> None:
        self._vision, self._prefill, self._decode, self._turns = (
            deque[tuple[float, float]](maxlen=REMEMBERED_ANSWERS) for _ in range(4)
        )
        self._rates = Rates()
        self._began_at: float | None = None
        """When the question that was last begun left the queue."""

    def rates(self) -> Rates:
        """Return what was measured so far."""
        return self._rates

    def note_turn(self, clock: AnswerClock) -> None:
        """Note a question that has just left the queue, and how long its turn was in coming.

        Its wait counts only from when the question before it began, and only when it was
        there by then: so long waits who is next in a busy queue.
        """
        began_at, self._began_at = self._began_at, clock.started_at
        if began_at is None or clock.started_at is None or clock.submitted_at > began_at:
            return
        self._turns.append((clock.started_at - began_at, 1.0))
        self._rates = replace(self._rates, turn_s=_weighted_median(self._turns))

    def note_prompt(self, clock: AnswerClock) -> None:
        """Note a prompt that was computed to its end."""
        _add(self._vision, clock.encoded_tokens, clock.vision_s)
        _add(self._prefill, clock.prefilled_tokens, clock.prefill_s)
        self._rates = replace(
            self._rates,
            vision_tps=_weighted_median(self._vision),
            prefill_tps=_weighted_median(self._prefill),
        )

    def note_answer(self, clock: AnswerClock) -> None:
        """Note an answer that is over."""
        _add(self._decode, clock.sampled_tokens - 1, clock.decode_s)
        self._rates = replace(self._rates, decode_tps=_weighted_median(self._decode))


def _add(rates: deque[tuple[float, float]], tokens: int, seconds: float) -> None:
    if tokens > 0 and seconds > 0:
        rates.append((tokens / seconds, tokens))


def _weighted_median(values: Iterable[tuple[float, float]]) -> float | None:
    """Return the middle of (value, weight) pairs; None for none.

    A rate weighs as much as the tokens it was measured over: short prompts say little of long
    ones.
    """
    ordered = sorted(values)
    half, passed = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return None
