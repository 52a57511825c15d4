"""Turn the body of a chat request into a question for the engine. A client is never trusted.

Only three roles exist, and texts stay texts: vlm/prompt.py encodes them without control tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlm.chat import Message, Role, Sampling
from vlm.config import IMAGE_DETAILS, Settings
from vlm.errors import PromptError
from vlm.request_checks import check_pictures
from vlm.server.pictures import PictureReader
from vlm.server.refusals import Refusal
from vlm.server.schema import ChatBody

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_DETAILS = {"low": "fast", "high": "fine"}


@dataclass(frozen=True)
class Question:
    """What a request asks, read and checked."""

    messages: tuple[Message, ...]
    sampling: Sampling
    max_visual_tokens: int
    stop: tuple[str, ...] = ()
    """Sequences that end the answer."""


class QuestionReader:
    """Reads questions by the settings of this server."""

    def __init__(self, settings: Settings, pictures: PictureReader) -> None:
        self._settings = settings
        self._pictures = pictures

    async def read(self, body: ChatBody, first: Sequence[str | Path] = ()) -> Question:
        """Check a body and decode its pictures. Raises Refusal and PictureError.

        `first` names pictures of the chat's first question, besides those in the body.
        """
        _check(body)
        named: list[list[str | Path]] = [[a.url for a in m.addresses] for m in body.messages]
        named[[m.role for m in body.messages].index("user")][:0] = first
        try:  # before any of them is decoded; the engine would refuse them after that
            check_pictures([len(names) for names in named], self._settings.picture.max_pictures)
        except PromptError as error:
            raise Refusal(400, str(error), "too_many_images", param="messages") from error
        pictures = iter(await self._pictures.open([name for names in named for name in names]))
        messages = tuple(
            Message(_ROLES[m.role], m.text, tuple(next(pictures) for _ in names))
            for m, names in zip(body.messages, named, strict=True)
        )
        tokens = self._visual_tokens(body)
        return Question(messages, self._sampling(body), tokens, tuple(body.stop))

    def _sampling(self, body: ChatBody) -> Sampling:
        start, limit = self._settings.generation, self._settings.model.context_tokens
        asked_tokens = body.max_completion_tokens or body.max_tokens or start.max_new_tokens
        seed = start.fixed_seed if body.seed is None else body.seed % 2**63
        return Sampling(
            temperature=_or(body.temperature, start.temperature),
            top_p=_or(body.top_p, start.top_p),
            top_k=start.top_k if body.top_k is None else body.top_k,
            presence_penalty=_or(body.presence_penalty, start.presence_penalty),
            # "At most" is kept by what the chat may hold; the engine's own bound is as large.
            max_new_tokens=min(asked_tokens, limit, 32768),
            seed=seed,
        )

    def _visual_tokens(self, body: ChatBody) -> int:
        """All pictures of a chat are read alike, with the finest detail asked for."""
        start = self._settings.picture.max_visual_tokens
        asked = [
            IMAGE_DETAILS[_DETAILS[address.detail]] if address.detail in _DETAILS else start
            for message in body.messages
            for address in message.addresses
        ]
        return max(asked, default=start)


def _check(body: ChatBody) -> None:
    if names := body.unsupported():
        raise Refusal(
            400,
            f"This server cannot do what is asked with {', '.join(names)}. Leave it out.",
            "unsupported",
            param=names[0],
        )
    if body.messages[-1].role != "user":
        raise Refusal(
            400,
            "The last message must be the user's question.",
            "invalid_value",
            param="messages",
        )
    if any(message.addresses and message.role != "user" for message in body.messages):
        raise Refusal(
            400, "Only the user's messages may have pictures.", "invalid_value", param="messages"
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
