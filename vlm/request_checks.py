"""Refuse what a request may not ask, in words, before any work is done for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pydantic import ValidationError

from vlm.chat import AskRequest, Sampling
from vlm.config import GenerationSettings
from vlm.errors import ContextLengthError, PromptError
from vlm.prompt import Prompt

MOST_TOKEN_CHARACTERS = 32


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


def check_request(request: AskRequest, limits: AnswerLimits) -> None:
    """Raise PromptError for too many pictures or characters, or sampling out of bounds."""
    for message in request.messages:
        if len(message.pictures) > limits.max_pictures:
            raise PromptError(
                f"This question has {len(message.pictures)} pictures; the limit is "
                f"{limits.max_pictures}. Remove some, or ask about them one after the other."
            )
    characters = sum(len(message.text) for message in request.messages)
    # A token has at most a few dozen characters: more cannot fit, and counting takes seconds.
    most = limits.context_tokens * MOST_TOKEN_CHARACTERS
    if characters > most:
        raise ContextLengthError(
            f"This chat has {characters} characters of text; the limit is {most}. "
            "Start a new chat, or shorten the text."
        )
    if request.max_visual_tokens < 1:
        raise PromptError(
            f"A picture cannot be read with {request.max_visual_tokens} visual tokens. "
            "Choose an image detail of 16 or more."
        )
    _check_sampling(request.sampling)


def _check_sampling(sampling: Sampling) -> None:
    values = asdict(sampling)
    if sampling.seed is None:
        del values["seed"]
    try:
        GenerationSettings.model_validate(values)
    except ValidationError as error:
        faults = [
            f"{fault['loc'][0]} = {fault['input']}: {fault['msg'].replace('Input should', 'must')}"
            for fault in error.errors()
        ]
        raise PromptError(
            f"The answer's settings cannot be used ({'; '.join(faults)}). Change or reset them."
        ) from error


def room_for_answer(request: AskRequest, prompt: Prompt, limits: AnswerLimits) -> int:
    """Return how many tokens the answer may have. Raises ContextLengthError when none."""
    limit, used = limits.context_tokens, len(prompt.token_ids)
    if used >= limit:
        visual = sum(span.length for span in prompt.spans)
        raise ContextLengthError(
            f"This chat has {used} tokens, {visual} of them for pictures; the limit is {limit}. "
            "Start a new chat, remove pictures, or lower the image detail."
        )
    return min(request.sampling.max_new_tokens, limit - used)
