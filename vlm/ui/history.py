"""Chats as a browser keeps them: raw text and small pictures, checked when they come back.

What a browser (or a file) holds could have been written by anyone: it is read by a strict form
with bounds, and never raises. Holds no token ids and no Gradio values.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import logging
import uuid
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from gradio.utils import get_upload_folder
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vlm.chat import Message
from vlm.errors import PictureError
from vlm.images import Picture, PictureLimits, open_picture
from vlm.ui.conversation import Turn
from vlm.ui.texts import EN
from vlm.ui.thumbnails import write_thumbnail

logger = logging.getLogger(__name__)

SMALL_BYTES = 12_000
"""Of a small copy, before it is written as text (a third more)."""
LONGEST_SIDE_PX = 512
LONGEST_TITLE = 100
LARGEST_FILE_BYTES = 8_000_000
"""Of a file with chats; a browser holds far less."""
_MOST_TEXT = 2_000_000
_PREFIX = "data:image/webp;base64,"
_MOST_PICTURES = 300
_LIMITS = PictureLimits(max_px=LONGEST_SIDE_PX**2, max_file_bytes=SMALL_BYTES)

Key = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
"""Names a picture by its content."""
Words = Annotated[str, Field(max_length=200_000)]
_small_copies: weakref.WeakKeyDictionary[Picture, str] = weakref.WeakKeyDictionary()


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class KeptMessage(_Form):
    """A question or an answer, as it was written."""

    role: Literal["user", "assistant"]
    text: Words
    pictures: Annotated[list[Key], Field(max_length=100)] = []
    end: Literal["stop", "length", "cancelled", "loop"] = "stop"
    """Of an answer: why it ended."""


class KeptChat(_Form):
    """A chat: questions and answers in turn; an open question at the end has no answer."""

    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    """Of the browser's own list only; the server never looks a chat up by it."""
    time_s: Annotated[float, Field(ge=0, le=1e11)]
    """Of the last change, in seconds since 1970."""
    title: Annotated[str, Field(max_length=2 * LONGEST_TITLE)]
    messages: Annotated[list[KeptMessage], Field(min_length=1, max_length=1000)]
    pictures: Annotated[
        dict[Key, Annotated[str, Field(max_length=2 * SMALL_BYTES)]],
        Field(max_length=_MOST_PICTURES),
    ] = {}
    """Small copies as data addresses; one that is not here was dropped for want of room."""

    @model_validator(mode="after")
    def _alternates(self) -> KeptChat:
        roles = [message.role for message in self.messages]
        if roles != (["user", "assistant"] * len(roles))[: len(roles)]:
            raise ValueError("questions and answers must alternate")
        if sum(len(message.text) for message in self.messages) > _MOST_TEXT:
            raise ValueError("the chat is too long")
        return self


class ChatFile(_Form):
    """A file of chats."""

    format: Literal["vlm-chats"]
    version: Literal[1]
    chats: Annotated[list[KeptChat], Field(max_length=1000)]

    @model_validator(mode="after")
    def _has_few_pictures(self) -> ChatFile:
        if sum(len(chat.pictures) for chat in self.chats) > 2 * _MOST_PICTURES:
            raise ValueError("too many pictures")
        return self


def read_chat(value: Any) -> KeptChat | None:
    """Check a chat that came from a browser; None for anything else."""
    try:
        return KeptChat.model_validate(value)
    except (ValidationError, RecursionError):
        logger.info("a chat from a browser was not in the right form")
        return None


def read_file(path: Path) -> list[KeptChat] | None:
    """Read a file of chats, each under an id made of its content; None for any other file."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            return None
        chats = ChatFile.model_validate_json(path.read_bytes()).chats
    except (OSError, ValidationError):
        logger.info("a file was not in the form of kept chats")
        return None
    good = [chat for chat in chats if _are_pictures(chat)]
    return [chat.model_copy(update={"id": _content_id(chat)}) for chat in good] or None


def keep(turns: Sequence[Turn], chat_id: str, time_s: float) -> KeptChat | None:
    """Put a chat into the form in which a browser keeps it; None for an empty one.

    A question that failed or has no word of an answer yet is kept open; an answer that is being
    written as stopped. A chat beyond the bounds is not kept.
    """
    try:
        messages = [message for turn in turns for message in _messages(turn)]
        if not messages:
            return None
        pictures = {
            picture_key(picture): small_copy(picture)
            for turn in turns
            for picture in turn.question.pictures
        }
        title = " ".join(messages[0].text.split())[:LONGEST_TITLE]
        return KeptChat(
            id=chat_id, time_s=time_s, title=title, messages=messages, pictures=pictures
        )
    except ValidationError:
        logger.info("a chat is too long to be kept in a browser")
        return None


def turns_of(chat: KeptChat) -> list[Turn] | None:
    """Make turns of a kept chat, with new files for its pictures; None for broken pictures."""
    try:
        opened = {key: _open(data) for key, data in chat.pictures.items()}
        # Kept again as it came: a copy of a copy of a copy would fade.
        _small_copies.update({opened[key]: data for key, data in chat.pictures.items()})
    except PictureError as error:
        logger.info("a kept picture could not be opened: %s", error)
        return None
    turns: list[Turn] = []
    for message in chat.messages:
        if message.role == "user":
            turns.append(_question(message, opened))
        else:
            turns[-1].answer, turns[-1].end, turns[-1].error = message.text, message.end, ""
    return turns


def small_copy(picture: Picture) -> str:
    """A copy of at most 512 px a side and 12 kB, as a data address; made once per picture."""
    if picture not in _small_copies:
        _small_copies[picture] = _PREFIX + base64.b64encode(_shrink(picture.image)).decode()
    return _small_copies[picture]


def picture_bytes(data: str) -> bytes:
    """The file (WebP) that a data address holds. Raises PictureError."""
    try:
        return base64.b64decode(data.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError("This picture cannot be read. Add it again.") from error


def _messages(turn: Turn) -> Iterator[KeptMessage]:
    keys = [picture_key(picture) for picture in turn.question.pictures]
    yield KeptMessage(role="user", text=turn.question.text, pictures=keys)
    if turn.end == "running" and turn.answer:
        yield KeptMessage(role="assistant", text=turn.answer, end="cancelled")
    elif turn.end != "running" and turn.end != "failed":
        yield KeptMessage(role="assistant", text=turn.answer, end=turn.end)


def _question(message: KeptMessage, opened: dict[str, Picture]) -> Turn:
    pictures = tuple(opened[key] for key in message.pictures if key in opened)
    lost = len(message.pictures) - len(pictures)
    return Turn(
        Message("user", message.text, pictures),
        uploads=tuple(_write_upload(picture) for picture in pictures),
        thumbnails=tuple(write_thumbnail(picture) for picture in pictures),
        notices=[EN.picture_lost.format(count=lost)] if lost else [],
        end="failed",
        error=EN.unanswered,
        is_given_back=True,
    )


def picture_key(picture: Picture) -> str:
    """Name a picture by its content, as kept chats do."""
    return picture.content_hash[:16]


def _shrink(image: Image.Image) -> bytes:
    side_px = LONGEST_SIDE_PX
    while True:
        small = image.copy()
        small.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        small.save(file, "WEBP", quality=60, method=2)
        if file.tell() <= SMALL_BYTES:
            return file.getvalue()
        side_px = 4 * side_px // 5


def _open(data: str) -> Picture:
    return open_picture(picture_bytes(data), name="picture.webp", limits=_LIMITS)


def _are_pictures(chat: KeptChat) -> bool:
    try:
        return all(_open(data) for data in chat.pictures.values())
    except PictureError:
        return False


def _write_upload(picture: Picture) -> str:
    """Write a picture where uploads are, so that its question can go back into the input."""
    folder = Path(get_upload_folder()) / "kept" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    path = folder / picture.name
    picture.image.save(path, quality=90, method=2)
    return str(path)


def _content_id(chat: KeptChat) -> str:
    said = chat.model_copy(update={"id": ""}).model_dump_json()
    return hashlib.sha256(said.encode()).hexdigest()[:32]
