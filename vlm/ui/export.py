"""Write kept chats as a zip: one folder a chat, its text as Markdown, its pictures as files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image

from vlm.errors import PictureError
from vlm.ui.history import KeptChat, picture_bytes
from vlm.ui.texts import Texts

_LONGEST_NAME = 40


def write_zip(
    path: Path,
    chats: Sequence[KeptChat],
    whole: Mapping[tuple[str, str], Image.Image],
    texts: Texts,
) -> None:
    """Write chats, the newest first.

    whole: pictures by (id of the chat, key in it) that are here larger than their small copies.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, chat in enumerate(chats, 1):
            folder = _folder_name(number, chat)
            files = {key: f"pictures/{index}.webp" for index, key in enumerate(chat.pictures, 1)}
            archive.writestr(f"{folder}/chat.md", chat_markdown(chat, files, texts))
            for key, name in files.items():
                image = whole.get((chat.id, key))
                data = _webp(image) if image else _kept(chat.pictures[key])
                archive.writestr(f"{folder}/{name}", data, zipfile.ZIP_STORED)


def chat_markdown(chat: KeptChat, files: Mapping[str, str], texts: Texts) -> str:
    """Write a chat as Markdown; `files` are the paths of its pictures by their keys."""
    ends = {"cancelled": texts.stopped, "length": texts.at_length, "loop": texts.in_loop}
    parts = [f"# {chat.title or texts.no_title}"]
    for message in chat.messages:
        is_question = message.role == "user"
        parts.append(f"## {texts.question if is_question else texts.column_answer}")
        for number, key in enumerate(message.pictures, 1):
            lost = texts.picture_lost.format(count=1)
            parts.append(f"![{number}]({files[key]})" if key in files else f"*{lost}*")
        parts += [message.text] if message.text else []
        parts += [f"*{ends[message.end]}*"] if message.end in ends else []
    if chat.messages[-1].role == "user":
        parts.append(f"*{texts.unanswered}*")
    return "\n\n".join(parts) + "\n"


def _folder_name(number: int, chat: KeptChat) -> str:
    """A name that every file system takes; the number keeps two of one title apart."""
    day = datetime.fromtimestamp(chat.time_s, UTC).date().isoformat()
    words = "".join(c if c.isalnum() else " " for c in chat.title).split()
    return "-".join([f"{number:03d}", day, *words])[:_LONGEST_NAME].rstrip("-")


def _webp(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=90, method=2)
    return file.getvalue()


def _kept(data: str) -> bytes:
    try:
        return picture_bytes(data)
    except PictureError:
        return b""
