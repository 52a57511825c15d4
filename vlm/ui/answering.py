"""What the chat's buttons do: send, stream the answer, retry, undo, stop, clear.

Each handler reads inputs, talks to the engine and the history, and returns what changes on
the page. Nothing that is shown is ever read back.
"""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gradio as gr

from vlm.chat import AskRequest, ChatEngine, Message, Piece, Sampling
from vlm.config import Settings
from vlm.errors import VLMError
from vlm.images import PictureLimits, open_picture
from vlm.ui.answer_line import answer_line
from vlm.ui.chat_view import ChatView, describe_wait
from vlm.ui.chinese import in_language
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.options import read_sampling, read_visual_tokens
from vlm.ui.sessions import Session, Sessions
from vlm.ui.texts import EN, Texts, texts_in
from vlm.ui.thumbnails import remove_thumbnails, write_thumbnail

logger = logging.getLogger(__name__)

LONGEST_QUESTION = 100_000
"""Characters; far more than the model holds, far less than would slow the page."""
SHOWN_EVERY_S = 0.1
"""Pause between two updates of a streaming answer; faster than that nobody reads."""
DOUBLE_CLICK_S = 1.5
"""The same question sent again within this time is a repeated click, not a new question."""


class Changes(NamedTuple):
    """What a handler changes on the page, in the order of the page's outputs."""

    chat: Any
    box: Any
    line: Any
    retry: Any
    undo: Any


def _no_changes() -> Changes:
    return Changes(gr.skip(), gr.skip(), gr.skip(), gr.skip(), gr.skip())


class Chat:
    """The handlers of one page."""

    def __init__(self, engine: ChatEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._view = ChatView()
        self.sessions = Sessions(
            on_leave=lambda conversation: engine.forget(conversation.id), on_drop=self._drop
        )
        self._limits = PictureLimits(
            max_px=int(settings.picture.max_megapixels * 1_000_000),
            max_file_bytes=settings.server.max_upload_bytes,
        )

    def send(
        self, request: gr.Request, box: dict[str, Any] | None, detail: Any, *options: Any
    ) -> Iterator[Changes]:
        """Show the question at once, then stream the answer; the input is kept on an error."""
        session = self.sessions.get(request.session_hash)
        chat, texts = session.conversation, texts_in(session.language)
        try:
            turn = self._read_question(session, box, texts)
        except VLMError as error:
            gr.Warning(html.escape(in_language(str(error), session.language)))
            turn = None
        sampling = read_sampling(self._settings, options)
        if turn is None or not chat.begin(turn):
            yield _no_changes()
            return
        yield from self._answer(chat, turn, texts, sampling, detail, is_new=True)

    def retry(
        self, request: gr.Request, box: dict[str, Any] | None, detail: Any, *options: Any
    ) -> Iterator[Changes]:
        """Answer the last question again."""
        session = self.sessions.get(request.session_hash)
        chat, texts = session.conversation, texts_in(session.language)
        sampling = read_sampling(self._settings, options)
        turn = chat.begin_again()
        if turn is None:
            yield _no_changes()
            return
        # A failed question was put back into the input; asked again, it leaves it.
        is_in_box = bool(box) and (box or {}).get("text") == turn.question.text
        yield from self._answer(chat, turn, texts, sampling, detail, is_new=is_in_box)

    def undo(self, box: dict[str, Any] | None, request: gr.Request) -> Changes:
        """Take the last question and its answer out of the chat, the question back to the input."""
        session = self.sessions.get(request.session_hash)
        chat, texts = session.conversation, texts_in(session.language)
        turn = chat.take_back()
        if turn is None:
            return _no_changes()
        session.expect_repeat()
        remove_thumbnails(turn.thumbnails)
        return self._idle(chat, texts)._replace(box=_question_box(turn, box))

    def stop(self, request: gr.Request) -> Any:
        """End the running answer; what is written stays."""
        session = self.sessions.get(request.session_hash)
        return gr.skip() if session.conversation.stop() else _idle_box()

    def clear(self, request: gr.Request) -> Changes:
        """Stop, and start an empty chat."""
        session = self.sessions.get(request.session_hash)
        chat = self.sessions.start_anew(session)
        session.expect_repeat()
        changes = self._idle(chat, texts_in(session.language))
        return changes._replace(box=gr.update(value=None, submit_btn=True, stop_btn=False))

    def give_back(self, box: dict[str, Any] | None, request: gr.Request) -> Any:
        """Put a question that failed back into the input, unless something new is there."""
        session = self.sessions.get(request.session_hash)
        turns = session.conversation.turns
        if not turns or turns[-1].end != "failed" or turns[-1].is_given_back:
            return gr.skip()
        session.expect_repeat()
        turns[-1].is_given_back = True
        return _question_box(turns[-1], box)

    def leave(self, request: gr.Request) -> None:
        """The tab was closed: its work ends."""
        self.sessions.leave(request.session_hash)

    def show(self, session: Session) -> Changes:
        """Show the chat as it is, in the session's language."""
        return self._idle(session.conversation, texts_in(session.language))

    def _drop(self, conversation: Conversation) -> None:
        self._engine.forget(conversation.id)
        for turn in conversation.turns:
            remove_thumbnails(turn.thumbnails)

    def _read_question(
        self, session: Session, box: dict[str, Any] | None, texts: Texts
    ) -> Turn | None:
        """Read the input; None when there is nothing to send. Raises VLMError."""
        text = str((box or {}).get("text") or "").strip()
        uploads = tuple(str(path) for path in (box or {}).get("files") or ())
        is_busy = session.conversation.is_busy
        if session.is_repeat(text, uploads, DOUBLE_CLICK_S):
            return None
        if not text and not uploads:
            if not is_busy:
                gr.Info(texts.no_question)
            return None
        if is_busy:
            gr.Info(texts.still_answering)
            return None
        most = self._settings.picture.max_pictures
        if len(uploads) > most:
            raise VLMError(texts.too_many_pictures.format(count=len(uploads), limit=most))
        if len(text) > LONGEST_QUESTION:
            raise VLMError(texts.text_too_long.format(count=len(text), limit=LONGEST_QUESTION))
        pictures = tuple(open_picture(path, limits=self._limits) for path in uploads)
        thumbnails = tuple(write_thumbnail(picture) for picture in pictures)
        notices = list(dict.fromkeys(n for picture in pictures for n in picture.notices))
        return Turn(Message("user", text, pictures), uploads, thumbnails, notices=notices)

    def _answer(
        self,
        chat: Conversation,
        turn: Turn,
        texts: Texts,
        sampling: Sampling,
        detail: Any,
        is_new: bool,
    ) -> Iterator[Changes]:
        """Ask the engine and show what it says; every way out closes the turn."""
        tokens = read_visual_tokens(self._settings, detail)
        asked_at_s = time.monotonic()
        try:
            answer = self._engine.ask(AskRequest(chat.id, chat.messages(), sampling, tokens))
            chat.attach(answer)
            yield self._busy(chat, texts, is_new)
            for piece in _read(answer, turn, chat):
                wait = describe_wait(piece, time.monotonic() - asked_at_s, texts)
                yield _no_changes()._replace(chat=self._view.messages(chat, texts, wait))
        except VLMError as error:
            logger.info("a question was not answered: %s", error)
            chat.finish(turn, "failed", str(error))
        except Exception:
            logger.exception("an answer ended with an unexpected error")
            chat.finish(turn, "failed", EN.broke)
        finally:
            # The page may be gone in the middle of an answer; the half answer is kept.
            if turn.end == "running":
                chat.stop()
                chat.finish(turn, "cancelled")
        if not chat.is_closed:
            yield self._idle(chat, texts)

    def _busy(self, chat: Conversation, texts: Texts, is_new: bool) -> Changes:
        wait = describe_wait(Piece("decode"), 0.0, texts)
        box = gr.update(submit_btn=False, stop_btn=True)
        if is_new:
            box["value"] = None
        off = gr.update(interactive=False)
        return Changes(self._view.messages(chat, texts, wait), box, gr.skip(), off, off)

    def _idle(self, chat: Conversation, texts: Texts) -> Changes:
        on = gr.update(interactive=bool(chat.turns))
        line = answer_line(chat.turns, texts)
        return Changes(self._view.messages(chat, texts), _idle_box(), line, on, on)


def _read(answer: Any, turn: Turn, chat: Conversation) -> Iterator[Piece]:
    """Put an answer's pieces into the turn; yield as often as the page should change."""
    shown_at_s, shown_stage = 0.0, ""
    for piece in answer:
        turn.answer += piece.text
        turn.notices += [notice for notice in piece.notices if notice not in turn.notices]
        if piece.stats is not None:
            turn.stats = piece.stats
            chat.finish(turn, piece.stats.finish_reason)
        now_s = time.monotonic()
        is_due = piece.stage != shown_stage or now_s - shown_at_s >= SHOWN_EVERY_S
        if is_due and turn.end == "running" and not chat.is_closed:
            shown_at_s, shown_stage = now_s, piece.stage
            yield piece
    if turn.end == "running":
        raise RuntimeError("the engine's stream ended without its last piece")


def _idle_box() -> Any:
    return gr.update(submit_btn=True, stop_btn=False)


def _question_box(turn: Turn, box: dict[str, Any] | None) -> Any:
    """Fill the input with a turn's question, unless something is in it already."""
    if box and (box.get("text") or box.get("files")):
        return _idle_box()
    value = {"text": turn.question.text, "files": list(turn.uploads)}
    return gr.update(value=value, submit_btn=True, stop_btn=False)
