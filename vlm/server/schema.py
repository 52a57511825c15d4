"""The forms of requests: what a client may send to the API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

MOST_MESSAGES = 1000
_NOTHING: tuple[Any, ...] = (None, [], {}, False, 0, "")
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "tools": _NOTHING,
    "functions": _NOTHING,
    "logprobs": _NOTHING,
    "top_logprobs": _NOTHING,
    "logit_bias": _NOTHING,
    "frequency_penalty": _NOTHING,
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": _NOTHING,
}
"""Fields of OpenAI's API that change an answer in ways this server cannot: the harmless values."""


class _Form(BaseModel):
    # Strict: "0.5" for 0.5 is a slip. Unknown fields pass: clients send many that change nothing.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


class PictureAddress(_Form):
    """Where a picture is: a data URL, or an address where the operator allows it."""

    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high"] | None = None


class TextPart(_Form):
    """A part of a message: text."""

    type: Literal["text"]
    text: str


def _as_address(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class PicturePart(_Form):
    """A part of a message: a picture."""

    type: Literal["image_url"]
    image_url: Annotated[PictureAddress, BeforeValidator(_as_address)]


def _as_parts(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return [] if value is None else value


Part = Annotated[TextPart | PicturePart, Field(discriminator="type")]


class ChatMessage(_Form):
    """One message of a chat; the roles of tools are not among them."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], BeforeValidator(_as_parts), Field(max_length=MOST_MESSAGES)]

    @property
    def text(self) -> str:
        """All text of the message."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def addresses(self) -> list[PictureAddress]:
        """All pictures of the message."""
        return [part.image_url for part in self.content if isinstance(part, PicturePart)]


def _as_list(value: object) -> object:
    if isinstance(value, str):
        return [value]
    return [] if value is None else value


StopSequence = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class StreamOptions(_Form):
    """How a stream is sent."""

    include_usage: bool | None = None


class ChatBody(_Form):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MOST_MESSAGES)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0, le=1000)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[StopSequence], BeforeValidator(_as_list), Field(max_length=16)] = []
    user: str | None = Field(None, max_length=512)

    def unsupported(self) -> list[str]:
        """Names of the fields that ask for something this server cannot do."""
        extra = self.model_extra or {}
        return [name for name, fine in _SUPPORTED.items() if extra.get(name) not in fine]


class WarmupBody(_Form):
    """The body of POST /warmup."""

    picture: str | None = None
    """A data URL."""
