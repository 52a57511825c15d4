"""Let the engine read pictures as soon as they are in the input, while the question is typed."""

from __future__ import annotations

import html
import logging
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from vlm.chat import AskRequest, ChatEngine, Message, Piece
from vlm.config import Settings
from vlm.errors import VLMError
from vlm.images import open_picture
from vlm.ui.options import read_system_prompt, read_visual_tokens
from vlm.ui.question_box import box_content, picture_limits
from vlm.ui.sessions import Session
from vlm.ui.texts import Texts, texts_in

logger = logging.getLogger(__name__)

LIST_FILES_JS = "(box) => JSON.stringify((box?.files ?? []).map((file) => file.path))"
"""Runs in the browser: typing must not call the server, a new picture must."""


class ReadingAhead:
    """The handler of a changed set of pictures."""

    def __init__(
        self, engine: ChatEngine, settings: Settings, session_of: Callable[[gr.Request], Session]
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._session_of = session_of
        self._limits = picture_limits(settings)

    def read(
        self, request: gr.Request, box: dict[str, Any] | None, detail: Any, system_prompt: Any
    ) -> Iterator[str]:
        """Read the pictures in the input; yield what to say about it, as HTML.

        Pictures that were taken out end what is being read. Bad ones are told about when the
        question is sent, not here.
        """
        session = self._session_of(request)
        if session.ahead is not None:
            session.ahead.stop()  # a question that was sent meanwhile keeps it going
            session.ahead = None
        _, uploads = box_content(box)
        chat, texts = session.conversation, texts_in(session.language)
        is_too_many = len(uploads) > self._settings.picture.max_pictures
        # An earlier question that is edited has its picture read already.
        if not uploads or chat.is_busy or is_too_many or session.edited is not None:
            yield ""
            return
        try:
            pictures = tuple(open_picture(path, limits=self._limits) for path in uploads)
            turn = Message("user", "", pictures)
            tokens = read_visual_tokens(self._settings, detail)
            text = read_system_prompt(system_prompt)
            system = (Message("system", text),) if text else ()
            messages = (*system, *chat.messages(), turn)
            asked = AskRequest(chat.id, messages, max_visual_tokens=tokens)
            session.ahead = answer = self._engine.read_ahead(asked)
            for piece in answer:
                # Once the question is sent, or the pictures change, this is old news.
                yield _status(piece, texts) if session.ahead is answer else ""
        except VLMError as error:
            logger.info("pictures were not read ahead: %s", error)
            yield ""


def _status(piece: Piece, texts: Texts) -> str:
    if piece.stage == "done":
        is_read = piece.stats is not None and piece.stats.finish_reason == "stop"
        words = texts.picture_read if is_read else ""
    elif piece.stage in ("vision", "prefill"):
        # Vision takes about half of the time.
        share = piece.progress / 2 + (0.5 if piece.stage == "prefill" else 0.0)
        words = texts.reading_picture.format(percent=round(100 * share))
    else:
        words = ""
    return f'<div class="ahead" role="status">{html.escape(words)}</div>' if words else ""
