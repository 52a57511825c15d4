"""What a request may not ask is refused in words, whatever type it has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from vlm.chat import AskRequest, Message, Sampling
from vlm.errors import ContextLengthError, PromptError
from vlm.prompt import PictureSpan, Prompt
from vlm.request_checks import AnswerLimits, check_pictures, check_request, room_for_answer

LIMITS = AnswerLimits(context_tokens=1024, max_pictures=4)
REQUEST = AskRequest("c", (Message("user", "Hello?"),))
NO_NUMBERS = [None, "1", True, False, [1], {}, b"1", 1j, object(), math.nan, math.inf, -math.inf]
TOO_LARGE = [1e9, 10**9, 10**400, 10**5000, -1e9, -(10**5000)]


def prompt(words: int, *pictures: int) -> Prompt:
    """A prompt of so many tokens of text, then of each picture."""
    spans, start = [], words
    for length in pictures:
        spans.append(PictureSpan(start, length, (1, 2, 2 * length), "key"))
        start += length
    return Prompt((7,) * start, tuple(spans))


def test_the_defaults_and_the_bounds_pass() -> None:
    check_request(REQUEST, LIMITS)
    for tokens in (16, 16384):
        check_request(replace(REQUEST, max_visual_tokens=tokens), LIMITS)
    least = Sampling(0, 0.01, 0, -2, 1, 0)
    most = Sampling(2, 1, 1000, 2, 32768, 2**63 - 1)
    for sampling in (least, most):
        check_request(replace(REQUEST, sampling=sampling), LIMITS)


def test_the_pictures_of_a_question_and_of_a_chat_are_bounded() -> None:
    check_pictures([4, 0, 4, 4, 4], 4)
    with pytest.raises(PromptError, match="This question has 5 pictures; the limit is 4. Remove"):
        check_pictures([1, 5], 4)
    with pytest.raises(PromptError, match="This chat has 17 pictures; the limit is 16. Start a n"):
        check_pictures([4, 4, 4, 4, 1], 4)
    check_pictures([], 4)


@pytest.mark.parametrize("value", [*NO_NUMBERS, *TOO_LARGE, 0, -1, 15, 16385, 512.0], ids=type)
def test_visual_tokens_are_a_whole_number_in_bounds(value: Any) -> None:
    with pytest.raises(PromptError, match="from 16 to 16384") as caught:
        check_request(replace(REQUEST, max_visual_tokens=value), LIMITS)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [*NO_NUMBERS, *TOO_LARGE], ids=type)
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "top_k", "presence_penalty", "max_new_tokens", "seed"]
)
def test_sampling_values_are_numbers_in_bounds(name: str, value: Any) -> None:
    sampling = Sampling(**{name: value})
    if name == "seed" and (value is None or type(value) is int and 0 <= value < 2**63):
        check_request(replace(REQUEST, sampling=sampling), LIMITS)
        return
    with pytest.raises(PromptError, match=f"{name} = .*must be .*Change or reset") as caught:
        check_request(replace(REQUEST, sampling=sampling), LIMITS)
    assert len(str(caught.value)) < 250


def test_all_wrong_sampling_values_are_named_at_once() -> None:
    sampling = Sampling(temperature=math.nan, top_k=-1)
    with pytest.raises(PromptError, match=r"temperature = nan: .*; top_k = -1: "):
        check_request(replace(REQUEST, sampling=sampling), LIMITS)


def test_a_seed_below_0_is_not_taken_for_a_random_one() -> None:
    with pytest.raises(PromptError, match="seed = -1"):
        check_request(replace(REQUEST, sampling=Sampling(seed=-1)), LIMITS)


def test_pictures_that_leave_no_room_for_words_are_refused() -> None:
    assert room_for_answer(REQUEST, prompt(20, 448, 448), LIMITS) == 1024 - 916
    told = "2 pictures of this chat take 897 visual tokens; the limit is 896 of the 1024 tokens"
    with pytest.raises(ContextLengthError, match=told) as caught:
        room_for_answer(REQUEST, prompt(20, 448, 449), LIMITS)
    assert "remove pictures, or lower the image detail" in str(caught.value)


def test_a_large_context_leaves_a_question_and_an_answer_their_room() -> None:
    limits = replace(LIMITS, context_tokens=8192)
    assert room_for_answer(REQUEST, prompt(20, 7936), limits) == 236
    with pytest.raises(ContextLengthError, match="The picture of this chat takes 7937 visual"):
        room_for_answer(REQUEST, prompt(20, 7937), limits)


def test_words_may_fill_the_context_to_the_last_token() -> None:
    assert room_for_answer(REQUEST, prompt(1023), LIMITS) == 1
    with pytest.raises(ContextLengthError, match="1024 tokens, 0 of them for pictures"):
        room_for_answer(REQUEST, prompt(1024), LIMITS)
