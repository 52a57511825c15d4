"""What the chat's buttons do: send, stream the answer, retry, undo, edit, stop, clear.

Each handler reads inputs, talks to the engine and the history, and returns what changes on
the page. Nothing that is shown is ever read back.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import gradio as gr

from vlm.chat import AskRequest, ChatEngine, Piece
from vlm.config import Settings
from vlm.errors import VLMError
from vlm.ui.answer_line import answer_line
from vlm.ui.chat_view import ChatView
from vlm.ui.chinese import in_language
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.options import Way, read_way
from vlm.ui.question_box import (
    LeftOut,
    QuestionReader,
    box_content,
    box_with_both,
    box_with_question,
    filled_box,
    idle_box,
    note_html,
)
from vlm.ui.sessions import Session, Sessions
from vlm.ui.streaming import read_pieces
from vlm.ui.texts import EN, Texts, texts_in
from vlm.ui.thumbnails import remove_thumbnails
from vlm.ui.visitors import page_visitor
from vlm.ui.waiting import Wait
from vlm.ui.written import written_chat

logger = logging.getLogger(__name__)


PRESSED_JS = "(last) => document.querySelector('#box .stop-button') ? String(Date.now()) : last"
"""Runs in the browser: a question sent while an answer is written changes its value."""


class Changes(NamedTuple):
    """What a handler changes on the page, named as the page's parts."""

    chat: Any
    box: Any
    line: Any
    retry: Any
    undo: Any
    note: Any
    cancel_edit: Any
    written: Any


def _no_changes() -> Changes:
    return Changes(*(gr.skip() for _ in Changes._fields))


class Chat:
    """The handlers of one page."""

    def __init__(self, engine: ChatEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._view = ChatView()
        self.sessions = Sessions(
            on_leave=lambda conversation: engine.forget(conversation.id), on_drop=self._drop
        )
        self._reader = QuestionReader(settings)

    def send(
        self, request: gr.Request, box: dict[str, Any] | None, *options: Any
    ) -> Iterator[Changes]:
        """Show the question at once, then stream the answer; the input is kept on an error."""
        session = self.sessions.get(request.session_hash)
        chat = session.conversation
        chat.visitor = page_visitor(request, chat.id)
        try:
            turn = self._reader.read(session, box)
        except VLMError as error:
            gr.Warning(html.escape(in_language(str(error), session.language)))
            turn = None
        if isinstance(turn, LeftOut):
            changed = filled_box(turn.text, turn.uploads)
            note = note_html(*turn.faults, is_fault=True)
            yield _no_changes()._replace(box=changed, note=note)
            return
        way = read_way(self._settings, options)
        before = chat.turns
        if turn is None or not chat.begin(turn, session.edited):
            yield _no_changes()
            return
        session.edited = None
        for old in before:
            if old not in chat.turns:
                remove_thumbnails(old.thumbnails)
        yield from self._answer(session, turn, way, is_new=True)

    def retry(
        self, request: gr.Request, box: dict[str, Any] | None, *options: Any
    ) -> Iterator[Changes]:
        """Answer the last question again."""
        session = self.sessions.get(request.session_hash)
        session.conversation.visitor = page_visitor(request, session.conversation.id)
        way = read_way(self._settings, options)
        turn = session.conversation.begin_again()
        if turn is None:
            yield _no_changes()
            return
        session.edited = None
        # A failed question was put back into the input; asked again, it leaves it.
        is_in_box = bool(box) and (box or {}).get("text") == turn.question.text
        yield from self._answer(session, turn, way, is_new=is_in_box)

    def undo(self, box: dict[str, Any] | None, request: gr.Request) -> Changes:
        """Take the last question and its answer out of the chat, the question back to the input."""
        session = self.sessions.get(request.session_hash)
        chat, texts = session.conversation, texts_in(session.language)
        turn = chat.take_back()
        if turn is None:
            return _no_changes()
        session.expect_repeat()
        remove_thumbnails(turn.thumbnails)
        session.edited = None
        return self._idle(chat, texts)._replace(box=box_with_both(turn, box))

    def edit(self, box: dict[str, Any] | None, event: gr.EventData, request: gr.Request) -> Changes:
        """Put an earlier question into the input; nothing is lost before it is sent."""
        session = self.sessions.get(request.session_hash)
        turns, texts = session.conversation.turns, texts_in(session.language)
        number = getattr(event, "turn", None)
        if session.conversation.is_busy:
            return self.remind(request)
        if not isinstance(number, int) or not 0 <= number < len(turns):
            return _no_changes()
        if session.edited is None:
            session.draft = box_content(box)
        session.edited = turns[number]
        session.expect_repeat()
        return _no_changes()._replace(
            box=filled_box(turns[number].question.text, turns[number].uploads),
            note=note_html(texts.editing.format(number=number + 1)),
            cancel_edit=gr.update(visible=True),
        )

    def remind(self, request: gr.Request) -> Changes:
        """Say that an answer is still being written, when something else is asked for.

        Gradio shows messages (gr.Info) of queued events only, so this stands above the input.
        """
        session = self.sessions.get(request.session_hash)
        if not session.conversation.is_busy:
            return _no_changes()
        note = note_html(texts_in(session.language).still_answering)
        return _no_changes()._replace(note=note)

    def cancel_edit(self, request: gr.Request) -> Changes:
        """Leave the earlier question as it is and bring back what the input held before."""
        session = self.sessions.get(request.session_hash)
        session.edited = None
        return self._idle(session.conversation, texts_in(session.language))._replace(
            box=filled_box(*session.draft)
        )

    def stop(self, request: gr.Request) -> Any:
        """End the running answer; what is written stays."""
        session = self.sessions.get(request.session_hash)
        return gr.skip() if session.conversation.stop() else idle_box()

    def clear(self, request: gr.Request) -> Changes:
        """Stop, and start an empty chat."""
        session = self.sessions.get(request.session_hash)
        chat = self.sessions.start_anew(session)
        session.expect_repeat()
        session.edited = None
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
        return box_with_question(turns[-1], box)

    def leave(self, request: gr.Request) -> None:
        """The tab was closed: its work ends."""
        self.sessions.leave(request.session_hash)

    def show(self, session: Session) -> Changes:
        """Show the chat as it is, in the session's language."""
        texts = texts_in(session.language)
        changes = self._idle(session.conversation, texts)
        if session.edited not in session.conversation.turns:
            return changes
        number = session.conversation.turns.index(session.edited) + 1
        note = note_html(texts.editing.format(number=number))
        return changes._replace(note=note, cancel_edit=gr.update(visible=True))

    def _drop(self, conversation: Conversation) -> None:
        self._engine.forget(conversation.id)
        for turn in conversation.turns:
            remove_thumbnails(turn.thumbnails)

    def _answer(self, session: Session, turn: Turn, way: Way, is_new: bool) -> Iterator[Changes]:
        """Ask the engine and show what it says; every way out closes the turn.

        The language may be switched, and the chat cleared, while it is answered.
        """
        chat, wait = session.conversation, Wait(self._engine.rates)
        try:
            messages = (*way.system, *chat.messages())
            answer = self._engine.ask(
                AskRequest(
                    chat.id, messages, way.sampling, way.max_visual_tokens, visitor=chat.visitor
                )
            )
            chat.attach(answer)
            yield self._busy(chat, texts_in(session.language), wait, is_new)
            for piece in read_pieces(answer, turn, chat):
                texts = texts_in(session.language)
                words = wait.describe(piece, len(turn.answer), texts)
                yield _no_changes()._replace(chat=self._view.messages(chat, texts, words))
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
        texts = texts_in(session.language)
        if not chat.is_closed:
            yield self._idle(chat, texts)
        else:  # a piece that was on its way may have brought the old chat back
            yield _no_changes()._replace(chat=self._view.messages(session.conversation, texts))

    def _busy(self, chat: Conversation, texts: Texts, wait: Wait, is_new: bool) -> Changes:
        box = gr.update(submit_btn=False, stop_btn=True)
        if is_new:
            box["value"] = None
        off = gr.update(interactive=False)
        return Changes(
            chat=self._view.messages(chat, texts, wait.describe(Piece("queued"), 0, texts)),
            box=box,
            line=gr.skip(),
            retry=off,
            undo=off,
            note="",
            cancel_edit=gr.update(visible=False),
            written=written_chat(chat.turns, texts),
        )

    def _idle(self, chat: Conversation, texts: Texts) -> Changes:
        on = gr.update(interactive=bool(chat.turns))
        return Changes(
            chat=self._view.messages(chat, texts),
            box=idle_box(),
            line=answer_line(chat.turns, texts),
            retry=on,
            undo=on,
            note="",
            cancel_edit=gr.update(visible=False),
            written=written_chat(chat.turns, texts),
        )
