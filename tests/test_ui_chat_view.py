"""What the chat component is given: derived from the turns, built once for what is finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from vlm.chat import Message
from vlm.images import open_picture
from vlm.ui.chat_view import ChatView
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.texts import EN, ZH
from vlm.ui.thumbnails import remove_thumbnails, write_thumbnail


def chat_of(*turns: Turn) -> Conversation:
    chat = Conversation()
    chat.turns = list(turns)
    return chat


def shown(turn: Turn, wait: str = "") -> str:
    message = ChatView().messages(chat_of(turn), EN, wait)[-1]
    return str(message.content[0].text)  # type: ignore[union-attr]


def test_pictures_of_older_turns_are_not_built_again_while_an_answer_streams() -> None:
    view = ChatView()
    old = Turn(Message("user", "a"), thumbnails=(Path("1.webp"), Path("2.webp")), end="stop")
    new = Turn(Message("user", "b"))
    chat = chat_of(old, new)
    first = view.messages(chat, EN)
    new.answer = "more"
    second = view.messages(chat, EN)
    assert second[0] is first[0] and second[2] is first[2]
    assert [part.type for part in first[0].content] == ["file", "file", "text"]
    assert second[3].content[0].text == "more"  # type: ignore[union-attr]


def test_an_open_answer_shows_the_wait_below_what_it_has() -> None:
    turn = Turn(Message("user", "a"))
    assert shown(turn, "Reading <x>") == '<span class="wait">Reading &lt;x&gt;</span>'
    turn.answer = "A cat"
    assert shown(turn) == "A cat"
    assert shown(turn, "Writing") == 'A cat\n\n<span class="wait">Writing</span>'


@pytest.mark.parametrize(
    ("end", "mark"),
    [("cancelled", EN.stopped), ("length", EN.at_length), ("loop", EN.in_loop)],
)
def test_an_answer_that_ended_early_says_so_beside_the_text(end: str, mark: str) -> None:
    turn = Turn(Message("user", "a"), answer="Half", end=end)  # type: ignore[arg-type]
    assert shown(turn) == f"Half\n\n*{mark}*"
    assert turn.reply().text == "Half"


def test_errors_and_notices_are_plain_text() -> None:
    failed = Turn(Message("user", "a"), end="failed", error="<b>*no*</b>")
    assert "<b>" not in shown(failed) and "*no*" not in shown(failed)
    noticed = Turn(Message("user", "a"), answer="Yes", end="stop", notices=["Only <1> frame."])
    assert shown(noticed) == "Yes\n\n*Only &#60;1&#62; frame.*"


def test_errors_and_notices_are_chinese_on_the_chinese_page() -> None:
    notices = ["This picture is an animation; only its first frame is used."]
    turn = Turn(Message("user", "a"), end="failed", error=EN.broke, notices=notices)
    text = ChatView().messages(chat_of(turn), ZH)[-1].content[0].text  # type: ignore[union-attr]
    assert ZH.broke in text and "这是动画，只使用第一帧。" in text


def test_an_empty_answer_is_not_an_empty_bubble() -> None:
    assert shown(Turn(Message("user", "a"), end="stop")) == f"*{EN.empty_answer}*"


def test_thumbnails_are_small_true_in_ratio_and_removable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    picture = open_picture(Image.new("RGB", (1600, 400), "red"))
    one, other = write_thumbnail(picture), write_thumbnail(picture)
    assert one != other
    with Image.open(one) as image:
        assert image.size == (768, 192)
    assert picture.image.size == (1600, 400)
    remove_thumbnails([one, other, tmp_path / "gone.webp"])
    assert not one.exists() and not other.exists()
