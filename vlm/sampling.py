"""Logits to the next token, and a guard against answers that repeat without end."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vlm.chat import Sampling
from vlm.errors import GenerationError

SMALLEST_TEMPERATURE = 1e-5
"""Below it the largest logit is certain, and dividing by it would leave the numbers of fp32."""
LOOP_TOKENS = 192
LOOP_REPEATS = 4
LOOP_PERIOD_TOKENS = 256


class Sampler:
    """Chooses the tokens of one answer, in the order vLLM does.

    The presence penalty comes first, on tokens of this answer only, and also counts at
    temperature 0; then temperature, top-k and top-p. Temperature 0 takes the largest
    logit, the lowest id among equals. The same seed and logits give the same tokens.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._sampling = sampling
        self._penalties = torch.zeros(vocab_size)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    @torch.no_grad()
    def next(self, logits: Tensor) -> int:
        """Return the next token id for logits (vocab_size,) fp32, left unchanged.

        Raises GenerationError when the logits are not numbers.
        """
        if not math.isfinite(float(logits.sum())):
            raise GenerationError(
                "The model's output is not a number (NaN or infinity), so this answer cannot "
                "go on. Ask again; if it happens again, use --precision fp32 or another picture."
            )
        if self._sampling.presence_penalty:
            logits = logits - self._penalties
        if self._sampling.temperature < SMALLEST_TEMPERATURE:
            token_id = int(logits.argmax())
        else:
            token_id = self._draw(logits / self._sampling.temperature)
        self._penalties[token_id] = self._sampling.presence_penalty
        return token_id

    def _draw(self, logits: Tensor) -> int:
        ids, candidates = top_candidates(logits, self._sampling.top_k, self._sampling.top_p)
        shares = candidates.softmax(0)
        return int(ids[torch.multinomial(shares, 1, generator=self._generator)])


def top_candidates(logits: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return ids and logits that pass top-k, then top-p, by rising logit; at least one.

    top_k 0 and top_p 1 keep all. As in transformers, logits equal to the k-th are kept,
    and so is the token that makes the sum of probabilities pass top_p.
    """
    if 0 < top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        ids = (logits >= least).nonzero().flatten()
    else:
        ids = torch.arange(len(logits))
    candidates, order = logits[ids].sort()
    ids = ids[order]
    if top_p < 1:
        keep = candidates.softmax(0).cumsum(0) > 1 - top_p
        keep[-1] = True
        ids, candidates = ids[keep], candidates[keep]
    return ids, candidates


class LoopGuard:
    """Sees when an answer ends in the same tokens over and over.

    A loop is the same run of up to 256 tokens at least 4 times and for at least 192 tokens,
    exactly: rows of a table, numbered lines, lists and boxes differ in some token.
    """

    def __init__(self) -> None:
        self._recent = np.full(LOOP_PERIOD_TOKENS, -1, dtype=np.int64)
        """The last tokens, the newest first."""
        self._matches = np.zeros(LOOP_PERIOD_TOKENS, dtype=np.int64)
        """By period - 1: how many last tokens equal the token one period before."""
        self._periods = np.arange(1, LOOP_PERIOD_TOKENS + 1)
        self._limits = np.maximum(LOOP_TOKENS, LOOP_REPEATS * self._periods) - self._periods

    def push(self, token_id: int) -> bool:
        """Add a token of the answer; return True once the answer is in a loop."""
        self._matches = np.where(self._recent == token_id, self._matches + 1, 0)
        self._recent = np.roll(self._recent, 1)
        self._recent[0] = token_id
        return bool((self._matches >= self._limits).any())
