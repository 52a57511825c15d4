"""What arrives from a page is bounded on the server, whatever it is."""

from __future__ import annotations

import math

import pytest

from vlm.config import Settings
from vlm.ui.options import (
    PRESENCE_PENALTY,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    new_tokens_range,
    read_sampling,
    read_visual_tokens,
)

SETTINGS = Settings()


def test_ordinary_values_pass() -> None:
    sampling = read_sampling(SETTINGS, (0.5, 0.9, 40, 0.0, 100, 7))
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.presence_penalty, sampling.max_new_tokens, sampling.seed) == (0.0, 100, 7)


def test_no_seed_draws_a_new_one() -> None:
    assert read_sampling(SETTINGS, (0.5, 0.9, 40, 0.0, 100, -1)).seed is None


@pytest.mark.parametrize("bad", [None, "1e9", math.nan, [], True])
def test_what_is_no_number_becomes_the_default(bad: object) -> None:
    sampling = read_sampling(SETTINGS, (bad,) * 6)
    start = SETTINGS.generation
    assert sampling.temperature == start.temperature
    assert sampling.max_new_tokens == start.max_new_tokens
    assert sampling.seed is None
    assert read_visual_tokens(SETTINGS, bad) == SETTINGS.picture.max_visual_tokens


@pytest.mark.parametrize("huge", [1e9, math.inf, 10**30, 10**400])
def test_too_much_is_cut_to_the_limit(huge: float) -> None:
    sampling = read_sampling(SETTINGS, (huge,) * 6)
    assert (sampling.temperature, sampling.top_p) == (TEMPERATURE.high, TOP_P.high)
    assert (sampling.top_k, sampling.presence_penalty) == (TOP_K.high, PRESENCE_PENALTY.high)
    assert sampling.max_new_tokens == new_tokens_range(SETTINGS).high
    assert read_visual_tokens(SETTINGS, huge) == 1280


@pytest.mark.parametrize("low", [-1e9, -math.inf])
def test_too_little_is_raised_to_the_limit(low: float) -> None:
    sampling = read_sampling(SETTINGS, (low,) * 6)
    assert (sampling.temperature, sampling.top_p) == (0.0, TOP_P.low)
    assert (sampling.top_k, sampling.max_new_tokens) == (0, 1)


def test_an_answer_never_outgrows_the_chat() -> None:
    small = Settings.model_validate({"model": {"context_tokens": 512}})
    assert new_tokens_range(small).high == 512
