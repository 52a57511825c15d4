"""The list of earlier chats: kept by the browser, opened, saved as files, read from a file.

The server holds no list. It tells the browser what to keep of the chat that is shown, and gets
one chat when one is opened; history.js does the rest.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import Dependency
from gradio.utils import get_upload_folder

from vlm.ui.answering import Chat
from vlm.ui.conversation import Conversation
from vlm.ui.export import write_zip
from vlm.ui.history import KeptChat, keep, picture_key, read_chat, read_file, turns_of
from vlm.ui.question_box import note_html
from vlm.ui.sessions import Session
from vlm.ui.texts import EN, Texts, texts_in

STORAGE_KEY = "vlm-chats"
SECRET = "kept-by-this-browser"  # noqa: S105 - hides nothing: a fixed one outlives a restart
MOST_EXPORTED = 300
_STOPS_WITHIN_S = 3.0
_WIRE = "keptChats.connect(trigger); watch('value', () => keptChats.take(props.value));"


class HistoryParts(NamedTuple):
    """The components of the list, the invisible ones included."""

    kept: gr.BrowserState
    wire: gr.HTML
    """Carries what the server says to history.js, and the events of history.js."""
    fold: gr.Accordion
    zip: gr.Button
    json: gr.Button
    file: gr.DownloadButton
    """Invisible: holds the zip that was asked for."""
    read: gr.UploadButton


def lay_out_history() -> HistoryParts:
    """Put the folded list where it stands."""
    kept = gr.BrowserState(storage_key=STORAGE_KEY, secret=SECRET)
    wire = gr.HTML(
        elem_id="kept-wire", html_template="<span hidden></span>", js_on_load=_WIRE, padding=False
    )
    with gr.Accordion(EN.earlier_chats, open=False, elem_id="earlier-chats") as fold:
        gr.HTML(
            elem_id="kept-list", html_template='<div class="kept"></div>', padding=False,
            apply_default_css=False,
            js_on_load="keptChats.listIn(element.querySelector('.kept'));",
        )  # fmt: skip
        with gr.Row(elem_id="kept-files"):
            as_zip, as_json = (
                gr.Button(text, size="sm", min_width=70, elem_id=f"kept-{kind}")
                for kind, text in (("zip", EN.export_zip), ("json", EN.export_json))
            )
            read = gr.UploadButton(
                EN.import_chats, size="sm", min_width=70, file_types=[".json"],
                elem_id="kept-import",
            )  # fmt: skip
        file = gr.DownloadButton(visible="hidden", elem_id="kept-file")
    return HistoryParts(kept, wire, fold, as_zip, as_json, file, read)


@dataclass
class _Told:
    """What a tab's browser was told to keep."""

    number: int = 0
    kept_id: str = ""
    chat: str = ""
    pictures: set[str] = field(default_factory=set)
    folder: Path | None = None
    """Of the last zip."""


class History:
    """What the list does, for the tabs of one page."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._told: weakref.WeakKeyDictionary[Session, _Told] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def connect(
        self, parts: HistoryParts, opened: Dependency, changes: list[Any], note: gr.HTML
    ) -> list[Dependency]:
        """Connect the list; returns the events after which another chat is shown.

        opened: the event after which the page has its words; changes: what shows a chat.
        """
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        at_once = {**quiet, "queue": False}
        kept, wire = parts.kept, parts.wire
        wire.input(None, None, kept, js="() => keptChats.stored()", trigger_mode="always_last",
                   **quiet)  # fmt: skip
        parts.json.click(None, None, None, js="() => keptChats.saveJson()", **quiet)
        parts.zip.click(
            self.write, kept, [parts.file, note], js="() => keptChats.all()", **at_once
        ).then(None, parts.file, None, js="(file) => keptChats.saveZip(file)", **quiet)
        parts.read.upload(self.read, parts.read, [note, wire], **at_once)
        chat = [*changes, wire]
        return [
            opened.then(self.restore, kept, chat, js="(kept) => keptChats.begin(kept)", **at_once),
            wire.select(self.open, kept, chat, js="() => keptChats.picked()", **at_once),
        ]

    def restore(self, asked: Any, request: gr.Request) -> tuple[Any, ...]:
        """The page was opened: show the chat again that this tab, or browser, had last."""
        session = self._session(request)
        session.visitor = request.username or ""
        asked = asked if isinstance(asked, dict) else {}
        texts, note = texts_in(session.language), ""
        is_ours = asked.get("owner") == session.visitor
        if session.conversation.turns:
            pass  # the visitor was faster
        elif self._chat.sessions.take_over(
            session, str(asked.get("token")), asked.get("is_reload") is True
        ):
            _wait_for_end(session.conversation)
            if is_ours and (kept := read_chat(asked.get("chat"))):
                self._know(session, kept.id, _without_time(kept), set(kept.pictures))
        elif is_ours and asked.get("chat") is not None:
            note = self._show_kept(session, asked["chat"])
        if asked.get("is_broken") is True:
            note = texts.kept_broken
        # Without a note of its own it leaves the one of a visitor who was faster.
        changes = self._chat.show(session)._replace(note=note_html(note) if note else gr.skip())
        return (*changes, self._tell(session))

    def open(self, asked: Any, request: gr.Request) -> tuple[Any, ...]:
        """Show a chat of the list; the one that was shown stays in the list."""
        session = self._session(request)
        put = self._news(session)
        note = self._show_kept(session, asked.get("chat") if isinstance(asked, dict) else None)
        session.edited = None
        session.expect_repeat()
        changes = self._chat.show(session)
        changes = changes._replace(note=note_html(note)) if note else changes
        return (*changes, self._tell(session, put))

    def new_chat(self, request: gr.Request) -> tuple[Any, ...]:
        """Empty the view; what was shown, a half answer too, stays in the list."""
        session = self._session(request)
        put = self._news(session)
        changes = self._chat.clear(request)
        return (*changes, self._tell(session, put))

    def save(self, request: gr.Request) -> Any:
        """Tell the browser what to keep of the chat that is shown."""
        return self._tell(self._session(request))

    def read(self, path: str | None, request: gr.Request) -> tuple[Any, Any]:
        """Take the chats of a file into the list."""
        session = self._session(request)
        texts = texts_in(session.language)
        chats = read_file(Path(path)) if path else None
        if chats is None:
            return note_html(texts.not_imported, is_fault=True), gr.skip()
        put = {"put": [chat.model_dump() for chat in chats], "isImport": True}
        return note_html(texts.imported.format(count=len(chats))), self._tell(session, put)

    def write(self, asked: Any, request: gr.Request) -> tuple[Any, Any]:
        """Write all chats into a zip; pictures that are still here in full."""
        session = self._session(request)
        texts = texts_in(session.language)
        found = asked.get("chats") if isinstance(asked, dict) else None
        found = found[:MOST_EXPORTED] if isinstance(found, list) else []
        chats = [chat for chat in map(read_chat, found) if chat]
        if not chats:
            return None, note_html(texts.nothing_to_export)
        folder = Path(get_upload_folder()) / "exports" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        chat = session.conversation
        whole = {
            (chat.kept_id, picture_key(picture)): picture.image
            for turn in list(chat.turns)
            for picture in turn.question.pictures
        }
        write_zip(folder / "chats.zip", chats, whole, texts)
        with self._lock:
            told = self._told.setdefault(session, _Told())
            old, told.folder = told.folder, folder
        if old:
            shutil.rmtree(old, ignore_errors=True)
        weakref.finalize(session, shutil.rmtree, folder, ignore_errors=True)
        return str(folder / "chats.zip"), gr.skip()

    def _session(self, request: gr.Request) -> Session:
        return self._chat.sessions.get(request.session_hash)

    def _show_kept(self, session: Session, value: Any) -> str:
        """Put a kept chat into the tab; returns what there is to say about it."""
        texts = texts_in(session.language)
        kept = read_chat(value)
        turns = turns_of(kept) if kept else None
        if kept is None or turns is None:
            return texts.kept_broken
        self._chat.sessions.start_anew(session, Conversation(turns, kept.id))
        said = keep(turns, kept.id, 0.0)
        self._know(session, kept.id, _without_time(said) if said else "", set())
        return texts.small_pictures if any(turn.thumbnails for turn in turns) else ""

    def _know(self, session: Session, kept_id: str, chat: str, pictures: set[str]) -> None:
        """Remember what the browser has: looking at a chat does not make it the newest one."""
        with self._lock:
            told = self._told.setdefault(session, _Told())
            told.kept_id, told.chat, told.pictures = kept_id, chat, pictures

    def _news(self, session: Session) -> dict[str, Any]:
        """What the browser does not know yet of the chat that is shown."""
        chat = session.conversation
        kept = keep(list(chat.turns), chat.kept_id, time.time())
        with self._lock:
            told = self._told.setdefault(session, _Told())
            was_here = told.kept_id == chat.kept_id and bool(told.chat)
            if told.kept_id != chat.kept_id:
                told.kept_id, told.chat, told.pictures = chat.kept_id, "", set()
            if kept is None:
                told.chat = ""
                return {"drop": [chat.kept_id]} if was_here and not chat.turns else {}
            said = _without_time(kept)
            if said == told.chat:
                return {}
            told.chat = said
            new = {key: data for key, data in kept.pictures.items() if key not in told.pictures}
            told.pictures |= new.keys()
        return {"put": [kept.model_copy(update={"pictures": new}).model_dump()]}

    def _tell(self, session: Session, news: dict[str, Any] | None = None) -> str:
        """Say to the browser what is shown, and what to keep."""
        news = self._news(session) if news is None else news
        texts = texts_in(session.language)
        with self._lock:
            told = self._told.setdefault(session, _Told())
            told.number += 1
            number = told.number
        said = {
            "number": number,
            "owner": session.visitor,
            "present": session.conversation.kept_id,
            "token": session.token,
            "language": texts.language,
            "words": _words(texts),
            **news,
        }
        # No tag may stand in the value of an HTML component, not even in a string.
        return json.dumps(said, ensure_ascii=False).replace("<", "\\u003c")


def _without_time(kept: KeptChat) -> str:
    return kept.model_copy(update={"time_s": 0.0, "pictures": {}}).model_dump_json()


def _words(texts: Texts) -> dict[str, str]:
    names = (
        "no_title", "no_earlier", "history_hint", "new_chat_hint", "drop_chat", "drop_all",
        "sure_drop", "sure_drop_all",
    )  # fmt: skip
    return {name: getattr(texts, name) for name in names}


def _wait_for_end(chat: Conversation) -> None:
    """Wait until the answer that the reload cut off has ended."""
    until_s = time.monotonic() + _STOPS_WITHIN_S
    while chat.is_busy and time.monotonic() < until_s:
        time.sleep(0.05)
    if chat.is_busy:
        chat.finish(chat.turns[-1], "cancelled")
