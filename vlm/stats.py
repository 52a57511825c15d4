"""Measure one answer: moments on a clock become AnswerStats.

Every figure is a difference of two clock readings or a count; nothing is estimated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vlm.chat import AnswerStats, FinishReason


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

    def _queue_s(self) -> float:
        ended_at = time.perf_counter() if self.started_at is None else self.started_at
        return ended_at - self.submitted_at

    def _decode_tps(self) -> float:
        if self.first_token_at is None or self.last_token_at is None or self.sampled_tokens < 2:
            return 0.0
        decode_s = self.last_token_at - self.first_token_at
        return (self.sampled_tokens - 1) / decode_s if decode_s > 0 else 0.0
