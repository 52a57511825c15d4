"""How to answer, as set on the page: read, bounded on the server, turned into Sampling.

A page can be talked to without its sliders, so nothing that arrives is trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from vlm.chat import Message, Sampling
from vlm.config import Settings

LARGEST_SEED = 2**31 - 1
"""Larger numbers lose digits on their way through a browser."""

LONGEST_SYSTEM_PROMPT = 8000
"""Characters; a long page of instructions, a quarter of the context at most."""


@dataclass(frozen=True)
class Range:
    """What a slider allows."""

    low: float
    high: float
    step: float

    def bound(self, value: object, default: float) -> float:
        """Bring a value into the range; anything that is no number becomes the default."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return default
        if isinstance(value, float) and math.isnan(value):
            return default
        return min(self.high, max(self.low, value))


TEMPERATURE = Range(0.0, 2.0, 0.05)
TOP_P = Range(0.05, 1.0, 0.05)
TOP_K = Range(0, 200, 1)
PRESENCE_PENALTY = Range(-2.0, 2.0, 0.1)
SEED = Range(-1, LARGEST_SEED, 1)
VISUAL_TOKENS = Range(16, 16384, 1)


def new_tokens_range(settings: Settings) -> Range:
    """Tokens an answer may have: never more than the chat may hold."""
    most = max(2048, settings.generation.max_new_tokens)
    return Range(1, min(most, settings.model.context_tokens), 1)


def read_sampling(settings: Settings, values: tuple[object, ...]) -> Sampling:
    """Read temperature, top-p, top-k, presence penalty, new tokens and seed, in this order."""
    start = settings.generation
    temperature, top_p, top_k, presence_penalty, new_tokens, seed = values
    bounded_seed = int(SEED.bound(seed, start.seed))
    tokens = new_tokens_range(settings).bound(new_tokens, start.max_new_tokens)
    return Sampling(
        temperature=TEMPERATURE.bound(temperature, start.temperature),
        top_p=TOP_P.bound(top_p, start.top_p),
        top_k=int(TOP_K.bound(top_k, start.top_k)),
        presence_penalty=PRESENCE_PENALTY.bound(presence_penalty, start.presence_penalty),
        max_new_tokens=int(tokens),
        seed=None if bounded_seed < 0 else bounded_seed,
    )


def read_system_prompt(value: object) -> str:
    """Read the system prompt; what is too long is cut, what is no text counts as none."""
    return value.strip()[:LONGEST_SYSTEM_PROMPT] if isinstance(value, str) else ""


def read_visual_tokens(settings: Settings, value: object) -> int:
    """Read the visual tokens a picture may take; never more than the finest level offered."""
    start = settings.picture.max_visual_tokens
    most = max(start, 1280)
    return min(most, int(VISUAL_TOKENS.bound(value, start)))


class Way(NamedTuple):
    """How a question is to be answered, as set on the page."""

    max_visual_tokens: int
    system: tuple[Message, ...]
    """The system prompt, or nothing."""
    sampling: Sampling


def read_way(settings: Settings, options: tuple[Any, ...]) -> Way:
    """Read picture detail, system prompt and what read_sampling() reads, in this order."""
    detail, system_prompt, *drawn = options
    text = read_system_prompt(system_prompt)
    return Way(
        max_visual_tokens=read_visual_tokens(settings, detail),
        system=(Message("system", text),) if text else (),
        sampling=read_sampling(settings, tuple(drawn)),
    )
