"""The last answer's boxes come on the right picture, escaped, with files that do not stay."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from vlm.boxes import Box
from vlm.chat import Message
from vlm.images import DEFAULT_LIMITS, Picture, open_picture
from vlm.ui.boxes_view import BoxesView, boxes_html
from vlm.ui.conversation import Conversation, Turn
from vlm.ui.picture_parts import PictureParts
from vlm.ui.sessions import Sessions
from vlm.ui.texts import EN, ZH

ANSWER = 'Here: [{"bbox_2d": [250, 500, 750, 1000], "label": "cat"}]'
REQUEST: Any = SimpleNamespace(session_hash="one")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's own folder for files."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path / "boxes"


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(on_leave=lambda chat: None, on_drop=lambda chat: None)


@pytest.fixture
def view(sessions: Sessions) -> BoxesView:
    return BoxesView(sessions, PictureParts(DEFAULT_LIMITS))


def picture(colour: str, size: tuple[int, int] = (400, 200), name: str = "cat.jpg") -> Picture:
    return open_picture(Image.new("RGB", size, colour), name)


def add(chat: Conversation, answer: str, *pictures: Picture, text: str = "Find it") -> Turn:
    """Add a question and its whole answer."""
    turn = Turn(Message("user", text, pictures), answer=answer, end="stop")
    chat.turns = [*chat.turns, turn]
    return turn


def shown(view: BoxesView) -> tuple[dict[str, Any], str, Path | None, Path | None]:
    """What the page is told: the fold, the HTML, the two files."""
    fold, html, png, file = view.show(REQUEST)
    paths = [Path(part["value"]) if part["value"] else None for part in (png, file)]
    return fold, html, paths[0], paths[1]


def test_an_answer_with_boxes_is_drawn_and_saved(
    sessions: Sessions, view: BoxesView, folder: Path
) -> None:
    chat = sessions.get("one").conversation
    add(chat, ANSWER, picture("white"))
    fold, html, png, file = shown(view)
    assert fold["visible"] and fold["label"] == "Found in the picture: 1"
    assert "1 cat" in html and "100, 100 – 300, 200" in html
    assert png is not None and file is not None
    assert (png.name, file.name) == ("picture-1-boxes.png", "picture-1-boxes.json")
    assert png.parent.parent == folder
    with Image.open(png) as image:
        assert image.size == (400, 200) and len(image.getcolors(99999) or ()) > 3
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["picture"] == "cat.jpg" and told["boxes"][0]["bbox_2d"] == [100, 100, 300, 200]


def test_pixels_are_those_of_the_original_picture(sessions: Sessions, view: BoxesView) -> None:
    kept = picture("white")
    large = Picture(kept.image, kept.content_hash, original_size=(4000, 2000))
    add(sessions.get("one").conversation, ANSWER, large)
    file = shown(view)[3]
    assert file is not None
    told = json.loads(file.read_text(encoding="utf-8"))
    assert (told["width_px"], told["height_px"]) == (4000, 2000)
    assert told["boxes"][0]["bbox_2d"] == [1000, 1000, 3000, 2000]


@pytest.mark.parametrize(
    ("text", "name"), [("Find it", "b.png"), ("the first picture", "a.png"), ("图2", "b.png")]
)
def test_the_named_picture_is_taken(
    sessions: Sessions, view: BoxesView, text: str, name: str
) -> None:
    chat = sessions.get("one").conversation
    add(chat, "Two.", picture("white", name="a.png"), picture("black", name="b.png"))
    add(chat, ANSWER, text=text)
    fold, _, _, file = shown(view)
    assert file is not None and json.loads(file.read_text(encoding="utf-8"))["picture"] == name
    assert fold["label"] == f"Found in picture {1 if name == 'a.png' else 2}: 1"


@pytest.mark.parametrize("end", ["running", "failed"])
def test_nothing_shows_without_a_whole_answer(
    sessions: Sessions, view: BoxesView, end: Any
) -> None:
    turn = add(sessions.get("one").conversation, ANSWER, picture("white"))
    turn.end = end
    assert shown(view) == ({"__type__": "update", "visible": False}, "", None, None)


@pytest.mark.parametrize("answer", ["A cat.", "", '{"bbox_2d": [1, 2, 3'])
def test_nothing_shows_without_boxes(
    sessions: Sessions, view: BoxesView, folder: Path, answer: str
) -> None:
    add(sessions.get("one").conversation, answer, picture("white"))
    assert not shown(view)[0]["visible"]
    assert not folder.exists()


def test_nothing_shows_without_a_picture(sessions: Sessions, view: BoxesView) -> None:
    add(sessions.get("one").conversation, ANSWER)
    assert not shown(view)[0]["visible"]


def test_a_stopped_answer_shows_the_boxes_it_has(sessions: Sessions, view: BoxesView) -> None:
    turn = add(sessions.get("one").conversation, ANSWER[:-4], picture("white"))
    turn.end = "cancelled"
    fold, html, *_ = shown(view)
    assert fold["visible"] and "ca…" in html


def test_files_are_written_once_and_gone_with_the_next_answer(
    sessions: Sessions, view: BoxesView
) -> None:
    chat = sessions.get("one").conversation
    add(chat, ANSWER, picture("white"))
    first = shown(view)[2]
    assert first is not None and shown(view)[2] == first
    add(chat, ANSWER)
    second = shown(view)[2]
    assert second is not None and second.exists()
    assert not first.parent.exists()
    chat.turns = chat.turns[:1]
    again = shown(view)[2]
    assert again is not None and again.exists() and not second.parent.exists()


def test_files_are_gone_with_the_chat(sessions: Sessions, view: BoxesView, folder: Path) -> None:
    session = sessions.get("one")
    add(session.conversation, ANSWER, picture("white"))
    assert shown(view)[0]["visible"] and list(folder.iterdir())
    sessions.start_anew(session)
    gc.collect()
    assert not list(folder.iterdir())
    assert not shown(view)[0]["visible"]


def test_visitors_have_folders_of_their_own(sessions: Sessions, view: BoxesView) -> None:
    folders = set()
    for name in ("one", "two"):
        add(sessions.get(name).conversation, ANSWER, picture("white"))
        folders.add(Path(view.show(SimpleNamespace(session_hash=name))[2]["value"]).parent)
    assert len(folders) == 2


def test_no_label_becomes_html() -> None:
    evil = '<img src=x onerror="window.bad=1">\' & </span>'
    html = boxes_html([Box(evil, 0, 0, 500, 500)], picture("white"), EN)
    assert "<img src=x" not in html and "</span></span>" not in html
    assert html.count("&lt;img src=x onerror=&quot;window.bad=1&quot;&gt;") == 2


def test_a_box_inside_another_one_lies_above_it() -> None:
    boxes = [Box("in", 100, 100, 200, 200), Box("out", 0, 0, 1000, 1000)]
    html = boxes_html(boxes, picture("white"), EN)
    assert "z-index:2" in html.split("data-box=")[1] and "z-index:1" in html.split("data-box=")[2]


def test_a_box_without_a_name_says_so_in_both_languages() -> None:
    for texts in (EN, ZH):
        assert texts.no_label in boxes_html([Box("", 1, 2, 3, 4)], picture("white"), texts)


def test_the_shown_copy_is_small() -> None:
    html = boxes_html([Box("", 1, 2, 3, 4)], picture("white", (3000, 1000)), EN)
    assert "--ratio:3.00" in html and len(html) < 20_000
