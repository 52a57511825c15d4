"""A chat is given back only to whom it belongs, and a browser is told no more than needed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest
from fake_engine import FakeEngine
from PIL import Image

from vlm.chat import Message
from vlm.config import Settings
from vlm.images import open_picture
from vlm.ui.answering import Changes, Chat
from vlm.ui.conversation import Turn
from vlm.ui.history_view import History
from vlm.ui.sessions import Session
from vlm.ui.texts import EN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    return tmp_path / "gradio"


@pytest.fixture
def chat() -> Chat:
    return Chat(FakeEngine(), Settings())


@pytest.fixture
def history(chat: Chat) -> History:
    return History(chat)


def tab(name: str, visitor: str | None = None) -> gr.Request:
    return cast(gr.Request, SimpleNamespace(session_hash=name, username=visitor))


def said(history: History, request: gr.Request) -> dict[str, Any]:
    return dict(json.loads(history.save(request)))


def ask(session: Session, text: str, answer: str, colour: str = "") -> Turn:
    image = Image.new("RGB", (90, 60), colour or "red")
    pictures = (open_picture(image),) if colour else ()
    turn = Turn(Message("user", text, pictures))
    assert session.conversation.begin(turn)
    turn.answer = answer
    session.conversation.finish(turn, "stop")
    return turn


def opened(history: History, request: gr.Request, **asked: Any) -> tuple[Changes, dict[str, Any]]:
    *changes, wire = history.restore(asked, request)
    return Changes(*changes), json.loads(wire)


def test_a_tab_is_told_once_what_to_keep_and_each_picture_once(
    chat: Chat, history: History
) -> None:
    session = chat.sessions.get("a")
    first = said(history, tab("a"))
    assert "put" not in first, "there is nothing to keep of an empty chat"
    ask(session, "one", "1", colour="red")
    (kept,) = said(history, tab("a"))["put"]
    assert kept["title"] == "one" and len(kept["pictures"]) == 1
    assert "put" not in said(history, tab("a"))
    ask(session, "two", "2", colour="blue")
    (again,) = said(history, tab("a"))["put"]
    assert again["id"] == kept["id"] and len(again["messages"]) == 4
    assert len(again["pictures"]) == 1 and again["pictures"].keys() != kept["pictures"].keys()
    session.conversation.turns.clear()
    assert said(history, tab("a"))["drop"] == [kept["id"]], "all of it was undone"


def test_a_kept_chat_is_shown_again_under_an_id_of_the_servers_own(
    chat: Chat, history: History
) -> None:
    ask(chat.sessions.get("a"), "one", "1", colour="red")
    (kept,) = said(history, tab("a"))["put"]
    changes, wire = opened(history, tab("b"), chat=kept, owner="", token="", is_reload=True)
    session = chat.sessions.get("b")
    assert [turn.answer for turn in session.conversation.turns] == ["1"]
    assert wire["present"] == session.conversation.kept_id == kept["id"]
    assert session.conversation.id not in (kept["id"], chat.sessions.get("a").conversation.id)
    assert "put" not in wire, "a look at a chat does not make it the newest one"
    assert EN.small_pictures in changes.note
    assert len(changes.chat) == 2


def test_a_hostile_value_is_left_out_with_one_sentence(chat: Chat, history: History) -> None:
    for value in ("chat", 5, {"id": "x"}, {"messages": [{"role": "system", "text": "a"}]}):
        changes, _ = opened(history, tab("a"), chat=value, owner="", token=7, is_reload="yes")
        assert EN.kept_broken in changes.note
        assert chat.sessions.get("a").conversation.turns == []
    changes, _ = opened(history, tab("a"), chat=None, owner="", is_broken=True)
    assert EN.kept_broken in changes.note
    for asked in (None, "text", [], 5):
        *changed, _ = history.restore(asked, tab("b"))
        assert Changes(*changed).note == gr.skip()
        *changed, _ = history.open(asked, tab("b"))
        assert EN.kept_broken in Changes(*changed).note
        assert EN.nothing_to_export in history.write(asked, tab("b"))[1]
    assert EN.nothing_to_export in history.write({"chats": [1, {}, "a"]}, tab("b"))[1]


def test_who_logs_in_next_at_the_same_browser_sees_nothing_of_the_one_before(
    chat: Chat, history: History
) -> None:
    opened(history, tab("a", "ann"), owner=None)
    session = chat.sessions.get("a")
    ask(session, "secret", "1")
    wire = said(history, tab("a", "ann"))
    assert wire["owner"] == "ann"
    asked = {"chat": wire["put"][0], "owner": "ann", "token": wire["token"], "is_reload": True}
    for other in ("bob", None):
        changes, told = opened(history, tab(f"of {other}", other), **asked)
        assert changes.chat == [] and told["owner"] == (other or "")
    changes, _ = opened(history, tab("again", "ann"), **asked)
    assert len(changes.chat) == 2


def test_a_reload_takes_the_whole_chat_over_and_nobody_else_can(
    chat: Chat, history: History
) -> None:
    session = chat.sessions.get("a")
    turn = ask(session, "one", "1", colour="red")
    before = session.conversation
    first = said(history, tab("a"))
    token, (kept,) = first["token"], first["put"]
    for guess in ("", "a", "0" * 32, "é", "\ud800"):
        opened(history, tab("b"), token=guess, is_reload=True)
    opened(history, tab("b"), token=token, is_reload=False)
    assert chat.sessions.get("b").conversation.turns == [], "the tab is still open: a duplicate"
    changes, wire = opened(history, tab("b"), token=token, is_reload=True, chat=kept, owner="")
    assert "put" not in wire, "a look at a chat does not make it the newest one"
    assert chat.sessions.get("b").conversation is before
    assert before.turns == [turn] and changes.note == gr.skip(), "the pictures are here in full"
    assert session.conversation is not before
    chat.leave(tab("a"))
    assert not before.is_closed


def test_a_tab_that_left_may_be_taken_over_without_a_reload(chat: Chat, history: History) -> None:
    ask(chat.sessions.get("a"), "one", "1")
    token = said(history, tab("a"))["token"]
    chat.leave(tab("a"))
    changes, _ = opened(history, tab("b"), token=token, is_reload=False)
    assert len(changes.chat) == 2


def test_a_reload_ends_the_answer_that_was_being_written(chat: Chat, history: History) -> None:
    session = chat.sessions.get("a")
    turn = Turn(Message("user", "count"), answer="one two")
    before = session.conversation
    assert before.begin(turn)
    ended = threading.Timer(0.2, lambda: before.finish(turn, "cancelled"))
    ended.start()
    changes, wire = opened(history, tab("b"), token=session.token, is_reload=True)
    ended.join()
    assert turn.end == "cancelled"
    assert EN.stopped in changes.chat[-1].content[0].text
    assert wire["put"][0]["messages"][-1] == {
        "role": "assistant", "text": "one two", "pictures": [], "end": "cancelled",
    }  # fmt: skip


def test_a_new_chat_keeps_the_one_before_a_half_answer_included(
    chat: Chat, history: History
) -> None:
    session = chat.sessions.get("a")
    turn = Turn(Message("user", "count"), answer="one two")
    assert session.conversation.begin(turn)
    *changes, wire = history.new_chat(tab("a"))
    told = json.loads(wire)
    assert Changes(*changes).chat == []
    assert told["put"][0]["messages"][-1]["text"] == "one two"
    assert told["present"] == session.conversation.kept_id != told["put"][0]["id"]


def test_a_zip_has_the_full_pictures_of_the_chat_that_is_shown(
    chat: Chat, history: History, folder: Path
) -> None:
    ask(chat.sessions.get("a"), "one", "1", colour="red")
    (kept,) = said(history, tab("a"))["put"]
    first, _ = history.write({"chats": [kept, {"broken": True}]}, tab("a"))
    second, _ = history.write({"chats": [kept]}, tab("a"))
    assert Path(second).is_file() and Path(second).is_relative_to(folder)
    assert not Path(first).exists(), "only the last one of a tab stays"
