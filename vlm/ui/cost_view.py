"""Keep the line under the input true: which event makes it new, and what its buttons do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
from gradio.events import Dependency

from vlm.ui.answering import Changes, Chat
from vlm.ui.parts import Parts
from vlm.ui.reading_ahead import ReadingAhead, Told
from vlm.ui.sessions import Session

LIST_FILES_JS = "(box) => JSON.stringify((box?.files ?? []).map((file) => file.path))"
"""Runs in the browser: typing must not call the server, a new picture must."""
COUNT_TYPED_JS = "(box) => String(Math.ceil((box?.text ?? '').length / 200))"
"""Runs in the browser: of what is typed or pasted, only a long stretch is worth a call."""
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_AT_ONCE: dict[str, Any] = {**_QUIET, "queue": False}
_STREAM: dict[str, Any] = {**_QUIET, "concurrency_limit": None, "trigger_mode": "multiple"}


class CostView:
    """The handlers of the line and its buttons, for the chats of one page."""

    def __init__(self, chat: Chat, ahead: ReadingAhead) -> None:
        self._chat = chat
        self._ahead = ahead

    def connect(
        self, parts: Parts, answered: Sequence[Dependency], switched: Dependency, changes: list[Any]
    ) -> Dependency:
        """Renew the line when the question changes, after answers and in another language.

        Returns the event of the button that changes the chat.
        """
        asked = [parts.box, parts.detail, parts.system_prompt, parts.max_new_tokens]
        told = [getattr(parts, name) for name in Told._fields]
        parts.box.change(None, parts.box, parts.files, js=LIST_FILES_JS, **_QUIET)
        parts.box.change(None, parts.box, parts.typed, js=COUNT_TYPED_JS, **_QUIET)
        for change in (parts.files.change, parts.detail.change, parts.system_prompt.blur):
            change(self.read, asked, told, **_STREAM)
        for change in (parts.typed.change, parts.max_new_tokens.release):
            change(self.tell, asked, told, **_AT_ONCE)
        for event in answered:
            event.then(self.read, asked, told, **_STREAM)
        switched.then(self.tell, asked, told, **_AT_ONCE)
        parts.lower_detail.click(self.lower, asked, [parts.detail, parts.preset], **_AT_ONCE)
        dropped = parts.drop_oldest.click(self.drop, asked, changes, **_AT_ONCE)
        dropped.then(self.read, asked, told, **_STREAM)
        return dropped

    def read(
        self, request: gr.Request, box: dict[str, Any] | None, *options: Any
    ) -> Iterator[Told]:
        """Tell what the question costs, and have its pictures read."""
        yield from self._ahead.read(self._session(request), box, *options)
        # Gradio sends the last value again when a generator ends: it may be old news by then.
        yield Told(*(gr.skip() for _ in Told._fields))

    def tell(self, request: gr.Request, box: dict[str, Any] | None, *options: Any) -> Told:
        """Tell what the question costs."""
        return self._ahead.tell(self._session(request), box, *options)

    def lower(self, request: gr.Request, box: dict[str, Any] | None, *options: Any) -> Any:
        """Set the picture detail at which the question fits; that is no preset any more."""
        better = self._ahead.lower(self._session(request), box, *options)
        return (gr.skip(), gr.skip()) if better is None else (better, None)

    def drop(self, request: gr.Request, box: dict[str, Any] | None, *options: Any) -> Changes:
        """Drop the oldest messages until the question fits, and show what is left."""
        session = self._session(request)
        self._ahead.drop_oldest(session, box, *options)
        return self._chat.show(session)

    def _session(self, request: gr.Request) -> Session:
        return self._chat.sessions.get(request.session_hash)
