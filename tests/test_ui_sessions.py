"""Each tab has its own chat, and a tab that left is forgotten in time."""

from __future__ import annotations

import pytest
from PIL import Image

from vlm.chat import Message
from vlm.images import open_picture
from vlm.ui import sessions
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.sessions import Session, Sessions


@pytest.fixture
def left() -> list[Conversation]:
    return []


@pytest.fixture
def dropped() -> list[Conversation]:
    return []


def test_tabs_have_chats_of_their_own(
    left: list[Conversation], dropped: list[Conversation]
) -> None:
    store = Sessions(left.append, dropped.append)
    one, other = store.get("a").conversation, store.get("b").conversation
    assert one is store.get("a").conversation
    assert one is not other and one.id != other.id


def test_clear_drops_the_old_chat(left: list[Conversation], dropped: list[Conversation]) -> None:
    store = Sessions(left.append, dropped.append)
    session = store.get("a")
    old = session.conversation
    new = store.start_anew(session)
    assert dropped == [old] and old.is_closed
    assert store.get("a").conversation is new


def test_a_tab_that_comes_back_soon_finds_its_chat(
    left: list[Conversation], dropped: list[Conversation]
) -> None:
    store = Sessions(left.append, dropped.append)
    chat = store.get("phone").conversation
    store.leave("phone")
    assert left == [chat] and dropped == []
    assert store.get("phone").conversation is chat and not chat.is_closed


def test_a_tab_that_left_long_ago_is_dropped(
    left: list[Conversation], dropped: list[Conversation]
) -> None:
    store = Sessions(left.append, dropped.append, kept_after_leaving_s=-1.0)
    gone, staying = store.get("gone").conversation, store.get("staying").conversation
    store.leave("gone")
    assert dropped == [gone]
    store.leave("never seen")
    assert store.get("staying").conversation is staying
    assert len(store) == 1


def test_the_longest_unused_tab_makes_place(
    left: list[Conversation], dropped: list[Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
    store = Sessions(left.append, dropped.append)
    first, second = store.get("1").conversation, store.get("2").conversation
    assert store.get("1").conversation is first
    store.get("3")
    assert dropped == [second]


def test_tabs_with_more_pictures_than_memory_holds_make_place(
    left: list[Conversation], dropped: list[Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_PICTURE_BYTES", 3 * 100 * 100 * 2)
    store = Sessions(left.append, dropped.append)
    picture = open_picture(Image.new("RGB", (100, 100)))
    chats = [store.get(str(number)).conversation for number in range(3)]
    for chat in chats[1:]:
        chat.turns.append(Turn(Message("user", "Hi", (picture,)), end="stop"))
    store.get("2")
    assert not dropped
    chats[2].turns.append(Turn(Message("user", "Hi", (picture,)), end="stop"))
    assert store.get("2").conversation is chats[2]
    assert dropped == chats[:2] and len(store) == 1


def test_the_same_again_at_once_is_a_double_click() -> None:
    session = Session()
    assert not session.is_repeat("a", (), 10.0)
    assert session.is_repeat("a", (), 10.0)
    assert not session.is_repeat("a", ("picture.png",), 10.0)
    assert not session.is_repeat("a", ("picture.png",), 0.0)


def test_a_question_that_was_given_back_may_be_sent_at_once() -> None:
    session = Session()
    session.is_repeat("a", (), 10.0)
    session.expect_repeat()
    assert not session.is_repeat("a", (), 10.0)


def test_the_chat_of_before_is_given_to_the_tab_that_knows_the_token(
    left: list[Conversation], dropped: list[Conversation]
) -> None:
    store = Sessions(left.append, dropped.append)
    old, new = store.get("old"), store.get("new")
    chat, empty = old.conversation, new.conversation
    assert not store.take_over(new, old.token, is_gone=True), "there is nothing to give back"
    chat.turns.append(Turn(Message("user", "Hi"), end="stop"))
    assert not store.take_over(new, "wrong", is_gone=True)
    assert not store.take_over(new, new.token, is_gone=True)
    assert not store.take_over(new, old.token, is_gone=False)
    assert store.take_over(new, old.token, is_gone=True)
    assert new.conversation is chat and not chat.is_closed
    assert dropped == [empty] and old.conversation not in (chat, empty)
