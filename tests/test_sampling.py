"""Sampling follows transformers' warpers, seeds and penalties; loops end, lists do not."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vlm.chat import Sampling
from vlm.errors import GenerationError
from vlm.sampling import LoopGuard, Sampler, top_candidates


def logits(seed: int = 0, vocab: int = 300) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def stock_shares(scores, temperature, top_k, top_p):
    scores = TemperatureLogitsWarper(temperature)(None, scores[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores[0].softmax(0)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 20, 1000])
@pytest.mark.parametrize("top_p", [0.01, 0.8, 0.95, 1.0])
def test_probabilities_equal_transformers(temperature, top_k, top_p):
    for seed in range(5):
        scores = logits(seed)
        ids, candidates = top_candidates(scores / temperature, top_k, top_p)
        shares = torch.zeros(len(scores)).index_put((ids,), candidates.softmax(0))
        expected = stock_shares(scores, temperature, min(top_k, len(scores)), top_p)
        torch.testing.assert_close(shares, expected, atol=1e-6, rtol=0)


def test_logits_equal_to_the_kth_are_all_kept():
    scores = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0])
    ids, candidates = top_candidates(scores, 2, 1.0)
    assert sorted(ids.tolist()) == [1, 2, 3]
    expected = stock_shares(scores, 1.0, 2, 1.0)
    torch.testing.assert_close(candidates.softmax(0), expected[ids])


def test_drawn_tokens_follow_the_probabilities():
    scores = logits(vocab=12)
    sampler = Sampler(Sampling(0.9, 0.9, 8, 0.0, seed=3), 12)
    counts = torch.zeros(12)
    draws = 6000
    for _ in range(draws):
        counts[sampler.next(scores)] += 1
    expected = stock_shares(scores, 0.9, 8, 0.9)
    assert set(counts.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    assert (counts / draws - expected).abs().max() < 0.03


def draw(seed: int | None, count: int = 40) -> list[int]:
    sampler = Sampler(Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=seed), 300)
    return [sampler.next(logits(step)) for step in range(count)]


def test_same_seed_same_tokens_whatever_ran_between():
    first = draw(11)
    torch.manual_seed(0)
    torch.rand(7)
    assert draw(11) == first
    assert draw(12) != first
    assert draw(None) != draw(None)


def test_drawing_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draw(1)
    draw(None)
    assert torch.equal(torch.get_rng_state(), before)


def test_temperature_zero_takes_the_largest_logit():
    sampler = Sampler(Sampling(temperature=0, presence_penalty=0.0), 300)
    for seed in range(20):
        assert sampler.next(logits(seed)) == int(logits(seed).argmax())


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 1e-6])
def test_a_temperature_next_to_zero_is_greedy_too(temperature):
    sampler = Sampler(Sampling(temperature, presence_penalty=0.0, seed=1), 300)
    for seed in range(20):
        assert sampler.next(logits(seed)) == int(logits(seed).argmax())


def test_presence_penalty_counts_once_and_only_on_the_answers_tokens():
    scores = torch.tensor([5.0, 4.0, 3.8, 0.0])
    sampler = Sampler(Sampling(temperature=0, presence_penalty=1.5), 4)
    # 0 falls to 3.5, 1 to 2.5, 2 to 2.3: then 0 is the largest for good.
    assert [sampler.next(scores) for _ in range(6)] == [0, 1, 2, 0, 0, 0]
    assert Sampler(Sampling(temperature=0, presence_penalty=1.5), 4).next(scores) == 0


def test_presence_penalty_without_temperature_zero_shifts_probabilities():
    scores = torch.tensor([2.0, 0.0])
    sampler = Sampler(Sampling(1.0, 1.0, 0, 1.5, seed=1), 2)
    while sampler.next(scores) != 0:
        pass
    # With both tokens seen the penalties cancel; with one, its odds fall by e**1.5.
    fresh = Sampler(Sampling(1.0, 1.0, 0, 1.5, seed=1), 2)
    fresh._penalties[0] = 1.5
    hits = 0
    for _ in range(3000):
        hits += fresh.next(scores) == 0
        fresh._penalties[1] = 0.0
        fresh._penalties[0] = 1.5
    assert hits / 3000 == pytest.approx(1 / (1 + math.exp(-0.5)), abs=0.03)


def test_logits_are_left_unchanged():
    scores = logits()
    before = scores.clone()
    sampler = Sampler(Sampling(seed=0), 300)
    for _ in range(3):
        sampler.next(scores)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_broken_logits_end_the_answer_in_words(bad, temperature):
    scores = logits()
    scores[17] = bad
    with pytest.raises(GenerationError, match="not a number"):
        Sampler(Sampling(temperature=temperature), 300).next(scores)


def pushed_until_loop(tokens: list[int]) -> int | None:
    """Return how many tokens were pushed when the guard first saw a loop."""
    guard = LoopGuard()
    for count, token in enumerate(tokens, 1):
        if guard.push(token):
            return count
    return None


@pytest.mark.parametrize(
    ("period", "tokens_until_cut"),
    [(1, 192), (2, 192), (7, 192), (48, 192), (60, 240), (256, 1024)],
)
def test_endless_repetition_is_cut(period, tokens_until_cut):
    start = list(range(1000, 1050))
    line = list(range(period))
    assert pushed_until_loop(start + line * 300) == len(start) + tokens_until_cut


def test_periods_above_the_limit_are_not_seen():
    assert pushed_until_loop(list(range(257)) * 10) is None


def words(text: str) -> list[int]:
    """Give each word, digit and mark of a text an id, much as a tokenizer does."""
    tokens: list[str] = []
    for character in text:
        if tokens and character.isalpha() and tokens[-1].isalpha():
            tokens[-1] += character
        else:
            tokens.append(character)
    ids: dict[str, int] = {}
    return [ids.setdefault(token, len(ids)) for token in tokens]


TABLE = "| city | rain |\n" + "".join(f"| town {i} | 0 | 0 | 0 |\n" for i in range(60))
NUMBERED = "".join(f"{i}. The colour is dark blue.\n" for i in range(1, 201))
BOXES = "".join(
    f'{{"bbox_2d": [{i}, {i * 3 % 997}, {i + 40}, {i * 5 % 991}], "label": "cup"}},\n'
    for i in range(100, 160)
)
EMPTY_ROWS = "|  |  |  |\n" * 12
RULE = "-" * 120 + "\n" + "=" * 80


@pytest.mark.parametrize(
    "text",
    [TABLE, NUMBERED, BOXES, EMPTY_ROWS, RULE],
    ids=["table", "list", "boxes", "rows", "rule"],
)
def test_ordinary_repetition_is_not_cut(text):
    assert len(words(text)) > 100
    assert pushed_until_loop(words(text)) is None


def test_a_break_in_the_loop_starts_the_count_again():
    guard = LoopGuard()
    assert not any(guard.push(token) for token in [1, 2, 3] * 60)
    assert not guard.push(9)
    assert not any(guard.push(token) for token in [1, 2, 3] * 63)
    assert any(guard.push(token) for token in [1, 2, 3] * 3)
