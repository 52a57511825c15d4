"""The input: read a question out of it, put one back into it, say what is wrong with it."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from vlm.chat import Message
from vlm.config import Settings
from vlm.errors import PictureError, VLMError
from vlm.images import Picture, PictureLimits, open_picture
from vlm.ui.chinese import in_language
from vlm.ui.conversation import Turn
from vlm.ui.sessions import Session
from vlm.ui.texts import texts_in
from vlm.ui.thumbnails import write_thumbnail

LONGEST_QUESTION = 100_000
"""Characters; far more than the model holds, far less than would slow the page."""
DOUBLE_CLICK_S = 1.5
"""The same question sent again within this time is a repeated click, not a new question."""


@dataclass(frozen=True)
class LeftOut:
    """A question that was not sent because some of its files are no usable pictures."""

    text: str
    uploads: tuple[str, ...]
    """Paths of the files that are good pictures."""
    faults: tuple[str, ...]
    """A sentence for each of the others: its name, and what is wrong."""


class QuestionReader:
    """Reads the input within the limits of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._most_pictures = settings.picture.max_pictures
        self._limits = picture_limits(settings)

    def read(self, session: Session, box: dict[str, Any] | None) -> Turn | LeftOut | None:
        """Read the input; None when there is nothing to send. Raises VLMError."""
        text, uploads = box_content(box)
        texts, is_busy = texts_in(session.language), session.conversation.is_busy
        if session.is_repeat(text, uploads, DOUBLE_CLICK_S):
            return None
        if is_busy or not (text or uploads):
            if text or uploads:
                gr.Info(texts.still_answering)
            elif not is_busy:
                gr.Info(texts.no_question)
            return None
        most = self._most_pictures
        if len(uploads) > most:
            raise VLMError(texts.too_many_pictures.format(count=len(uploads), limit=most))
        if len(text) > LONGEST_QUESTION:
            raise VLMError(texts.text_too_long.format(count=len(text), limit=LONGEST_QUESTION))
        return self._open(session, text, uploads)

    def _open(self, session: Session, text: str, uploads: tuple[str, ...]) -> Turn | LeftOut:
        """Open the pictures; those that cannot be opened are told with their reasons."""
        pictures: dict[str, Picture] = {}
        faults = []
        for path in uploads:
            try:
                pictures[path] = open_picture(path, limits=self._limits)
            except PictureError as error:
                why = in_language(str(error), session.language)
                words = texts_in(session.language).left_out
                faults.append(words.format(name=Path(path).name, why=why))
        good = tuple(path for path in uploads if path in pictures)
        if faults:
            return LeftOut(text, good, tuple(faults))
        opened = tuple(pictures[path] for path in uploads)
        thumbnails = tuple(write_thumbnail(picture) for picture in opened)
        notices = list(dict.fromkeys(n for picture in opened for n in picture.notices))
        return Turn(Message("user", text, opened), uploads, thumbnails, notices=notices)


def picture_limits(settings: Settings) -> PictureLimits:
    """What the settings allow of a picture file."""
    return PictureLimits(
        max_px=int(settings.picture.max_megapixels * 1_000_000),
        max_file_bytes=settings.server.max_upload_bytes,
    )


def box_content(box: dict[str, Any] | None) -> tuple[str, tuple[str, ...]]:
    """The text and the paths of the files in the input."""
    text = str((box or {}).get("text") or "").strip()
    return text, tuple(str(path) for path in (box or {}).get("files") or ())


def filled_box(text: str, uploads: tuple[str, ...]) -> Any:
    """Put text and files into the input, ready to be sent."""
    value = {"text": text, "files": list(uploads)}
    return gr.update(value=value, submit_btn=True, stop_btn=False)


def idle_box() -> Any:
    """Leave the input as it is, ready to be sent."""
    return gr.update(submit_btn=True, stop_btn=False)


def box_with_question(turn: Turn, box: dict[str, Any] | None) -> Any:
    """Put a turn's question into the input, unless something is in it already."""
    return idle_box() if any(box_content(box)) else filled_box(turn.question.text, turn.uploads)


def box_with_both(turn: Turn, box: dict[str, Any] | None) -> Any:
    """Put a turn's question into the input, on a line before what is typed there already."""
    text, uploads = box_content(box)
    lines = dict.fromkeys(line for line in (turn.question.text, text) if line)
    return filled_box("\n".join(lines), tuple(dict.fromkeys((*turn.uploads, *uploads))))


def note_html(*sentences: str, is_fault: bool = False) -> str:
    """Show sentences above the input, all escaped; empty for none."""
    if not sentences:
        return ""
    kind, role = ("note fault", "alert") if is_fault else ("note", "status")
    lines = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    return f'<div class="{kind}" role="{role}">{lines}</div>'
