"""Refuse what a request may not ask, in words, before any work is done for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from vlm.chat import AskRequest, Sampling
from vlm.config import LEAST_VISUAL_TOKENS, MOST_VISUAL_TOKENS, GenerationSettings
from vlm.errors import ContextLengthError, PromptError

if TYPE_CHECKING:  # it imports the tokenizer, and a server checks requests before it is there
    from vlm.prompt import Prompt

MOST_TOKEN_CHARACTERS = 32
QUESTIONS_OF_PICTURES = 4
"""A chat may have so many times the pictures of a question: they are all kept in memory."""
TEXT_TOKENS = 256
"""What pictures must leave to the words of a chat: a question and a short answer."""


@dataclass(frozen=True)
class AnswerLimits:
    """What one answer may take."""

    context_tokens: int
    """Tokens of the chat and its answer together."""
    max_pictures: int
    """Pictures of one question."""
    loop_guard: bool = True
    prefill_rows: int = 256
    """Prompt tokens forwarded at once: enough for fast matrix products, few enough to stop soon."""
    guess_tokens: int = 3
    """Next tokens that may be guessed from the chat and checked in one pass; 0: none."""


class _AnswerSettings(GenerationSettings):
    """The settings' bounds for one answer, whose seed is a seed: None draws one, not -1."""

    seed: int = Field(0, ge=0, le=2**63 - 1)


def check_request(request: AskRequest, limits: AnswerLimits) -> None:
    """Raise PromptError for too many pictures or characters, or numbers that cannot be meant."""
    check_pictures([len(message.pictures) for message in request.messages], limits.max_pictures)
    characters = sum(len(message.text) for message in request.messages)
    # A token has at most a few dozen characters: more cannot fit, and counting takes seconds.
    most = limits.context_tokens * MOST_TOKEN_CHARACTERS
    if characters > most:
        raise ContextLengthError(
            f"This chat has {characters} characters of text; the limit is {most}. "
            "Start a new chat, or shorten the text."
        )
    tokens = request.max_visual_tokens
    # bool is an int for Python, and a float may be NaN.
    if type(tokens) is not int or not LEAST_VISUAL_TOKENS <= tokens <= MOST_VISUAL_TOKENS:
        raise PromptError(
            f"A picture cannot be read with {_shown(tokens)} visual tokens. Choose an image "
            f"detail that is a whole number from {LEAST_VISUAL_TOKENS} to {MOST_VISUAL_TOKENS}."
        )
    _check_sampling(request.sampling)


def check_pictures(counts: Sequence[int], most: int) -> None:
    """Raise PromptError for too many pictures, given how many each message has.

    most: pictures of one question.
    """
    if counts and max(counts) > most:
        raise PromptError(
            f"This question has {max(counts)} pictures; the limit is {most}. Remove some, or ask "
            "about them one after the other."
        )
    if sum(counts) > QUESTIONS_OF_PICTURES * most:
        raise PromptError(
            f"This chat has {sum(counts)} pictures; the limit is {QUESTIONS_OF_PICTURES * most}. "
            "Start a new chat, or leave out earlier pictures."
        )


def _check_sampling(sampling: Sampling) -> None:
    values = asdict(sampling)
    if sampling.seed is None:
        del values["seed"]
    try:
        _AnswerSettings.model_validate(values)
    except ValidationError as error:
        faults = [
            f"{fault['loc'][0]} = {_shown(fault['input'])}: {_in_words(fault['msg'])}"
            for fault in error.errors()
        ]
        raise PromptError(
            f"The answer's settings cannot be used ({'; '.join(faults)}). Change or reset them."
        ) from error


def _in_words(message: str) -> str:
    return message.replace("Input should", "must").replace("valid integer", "whole number")


def _shown(value: object) -> str:
    """Write a value that came from outside, whatever it is and however long."""
    try:
        return f"{value!r:.40}"
    except ValueError:  # Python refuses to write out an int of thousands of digits
        return "a number of thousands of digits"


def room_for_answer(request: AskRequest, prompt: Prompt, limits: AnswerLimits) -> int:
    """Return how many tokens the answer may have.

    Raises ContextLengthError when there is none, or when pictures leave no room for words.
    """
    limit, used = limits.context_tokens, len(prompt.token_ids)
    visual = sum(span.length for span in prompt.spans)
    most_visual = limit - min(TEXT_TOKENS, limit // 8)
    if visual > most_visual:
        count = len(prompt.spans)
        these = f"{count} pictures of this chat take" if count > 1 else "picture of this chat takes"
        raise ContextLengthError(
            f"The {these} {visual} visual tokens; the limit is "
            f"{most_visual} of the {limit} tokens a chat may have, so that words have room. "
            "Start a new chat, remove pictures, or lower the image detail."
        )
    if used >= limit:
        raise ContextLengthError(
            f"This chat has {used} tokens, {visual} of them for pictures; the limit is {limit}. "
            "Start a new chat, remove pictures, or lower the image detail."
        )
    return min(request.sampling.max_new_tokens, limit - used)
