"""Asking about a part in a real browser: dragged, cut, sent, and its boxes on the whole picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine, Script
from PIL import Image
from playwright.sync_api import expect

from vlm.ui.part_of_picture import _read_rectangle

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

OpenTab = Callable[..., Tab]


def two_halves(folder: Path) -> Path:
    """A picture of 2000 x 1000 px, red on the left and blue on the right."""
    image = Image.new("RGB", (2000, 1000), "red")
    image.paste("blue", (1000, 0, 2000, 1000))
    path = folder / "halves.png"
    image.save(path)
    return path


def drag(tab: Tab, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag on the shown picture, from and to shares of its sides."""
    stage = tab.page.locator("#part-view .stage")
    expect(stage.locator("img")).to_be_visible()
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    assert box
    for index, (x, y) in enumerate((start, end)):
        tab.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        (tab.page.mouse.down, tab.page.mouse.up)[index]()


def test_the_dragged_part_is_sent_beside_the_small_whole_picture(
    tab: Tab, engine: FakeEngine, tmp_path: Path
) -> None:
    tab.attach(two_halves(tmp_path))
    tab.button("part").click()
    drag(tab, (0.75, 0.75), (0.5, 0.25))
    expect(tab.thumbnails).to_have_count(2)
    expect(tab.page.locator("#part-view")).to_have_count(0)
    box = {"bbox_2d": [0, 0, 1000, 500], "label": "upper half"}
    engine.script = Script(words=(json.dumps([box]),))
    tab.ask("What is there?")
    expect(tab.pictures).to_have_count(2)
    whole, part = engine.requests[0].messages[0].pictures
    assert whole.image.width * whole.image.height <= 1.01 * 512 * 512
    assert whole.image.width / whole.image.height == pytest.approx(2, abs=0.02)
    # Not more than the edge of the red half may be in it: a screen pixel is several of these.
    assert part.image.size == pytest.approx((500, 500), abs=12)
    assert part.image.getpixel((20, 20)) == (0, 0, 255)
    with tab.page.expect_download() as download:
        tab.page.locator("#boxes-json").click()
    told = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert (told["picture"], told["width_px"], told["height_px"]) == ("halves.png", 2000, 1000)
    assert told["boxes"][0]["bbox_2d"] == pytest.approx([1000, 250, 1500, 500], abs=12)


def test_a_part_of_an_earlier_picture_is_added_to_what_is_in_the_input(
    tab: Tab, engine: FakeEngine, tmp_path: Path
) -> None:
    tab.ask("What is it?", two_halves(tmp_path))
    tab.box.fill("And here?")
    tab.button("part").click()
    drag(tab, (0.1, 0.1), (0.4, 0.4))
    expect(tab.thumbnails).to_have_count(2)
    expect(tab.box).to_have_value("And here?")
    tab.box.press("Enter")
    expect(tab.answers).to_have_count(2)
    tab.wait_for_end()
    pictures = engine.requests[-1].messages[-1].pictures
    assert len(pictures) == 2 and pictures[1].image.getpixel((5, 5)) == (255, 0, 0)


def test_the_button_shows_and_hides_and_says_when_there_is_no_picture(
    tab: Tab, engine: FakeEngine, tmp_path: Path
) -> None:
    tab.button("part").click()
    expect(tab.toast).to_contain_text("Add a picture first")
    expect(tab.page.locator("#part-view")).to_have_count(0)
    tab.attach(two_halves(tmp_path))
    tab.button("part").click()
    drag(tab, (0.5, 0.5), (0.5, 0.5))
    expect(tab.thumbnails).to_have_count(1)
    expect(tab.page.locator("#part-view img")).to_be_visible()
    tab.page.locator("#part-view .leave").click()
    expect(tab.page.locator("#part-view")).to_have_count(0)


def test_a_part_is_chosen_by_keys_and_escape_closes(
    tab: Tab, engine: FakeEngine, tmp_path: Path
) -> None:
    tab.attach(two_halves(tmp_path))
    tab.button("part").click()
    stage = tab.page.locator("#part-view .stage")
    expect(stage).to_be_focused()
    chat = tab.page.locator("#chat").bounding_box()
    assert chat and chat["height"] >= 400, "the chat gave room"
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("#part-view")).to_have_count(0)
    expect(tab.button("part")).to_be_focused()

    tab.page.keyboard.press("Enter")
    expect(stage).to_be_focused()
    expect(tab.page.locator("#part-view .take")).to_be_hidden()
    for key, times in (("ArrowRight", 13), ("Shift+ArrowUp", 5)):
        for _ in range(times):
            tab.page.keyboard.press(key)
    expect(tab.page.locator("#part-view .place")).to_have_text(
        "50 % from the left, 25 % from the top, 50 x 40 % large"
    )
    tab.page.keyboard.press("Tab")
    expect(tab.page.locator("#part-view .take")).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.thumbnails).to_have_count(2)
    expect(tab.box).to_be_focused()
    tab.ask("What is there?")
    part = engine.requests[-1].messages[-1].pictures[1]
    assert part.image.size == (1000, 400) and part.image.getpixel((5, 5)) == (0, 0, 255)


def test_a_part_taken_while_an_answer_is_written_keeps_text_and_stop(
    tab: Tab, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.script = Script(words=("One ", "two ", "three."), by_step=True)
    tab.start("Count", two_halves(tmp_path))
    engine.step()
    tab.box.fill("And here?")
    tab.button("part").click()
    drag(tab, (0.1, 0.1), (0.4, 0.4))
    expect(tab.thumbnails).to_have_count(2)
    expect(tab.box).to_have_value("And here?")
    expect(tab.stop).to_be_visible()
    engine.step(2)
    tab.wait_for_end()
    expect(tab.answers).to_have_text("One two three.")
    expect(tab.box).to_have_value("And here?")
    expect(tab.thumbnails).to_have_count(2)


def test_a_phone_shows_picture_and_close_whole_and_comes_back_to_the_input(
    engine: FakeEngine, open_tab: OpenTab, tmp_path: Path
) -> None:
    tab = open_tab(viewport={"width": 390, "height": 844}, locale="en-GB")
    tab.attach(two_halves(tmp_path))
    tab.button("part").click()
    expect(tab.page.locator("#part-view img")).to_be_visible()
    for part in (".stage", ".leave", ".card"):
        expect(tab.page.locator(f"#part-view {part}")).to_be_in_viewport(ratio=0.99)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.page.locator("#part-view .leave").click()
    expect(tab.page.locator("#part-view")).to_have_count(0)
    expect(tab.box).to_be_in_viewport(ratio=0.9)
    box = tab.button("clear").bounding_box()
    assert box and box["x"] + box["width"] <= 382, "the last button is cut off"


@pytest.mark.parametrize(
    "sent", [{}, {"left": "0", "top": 0, "right": 1, "bottom": 1}, {"left": float("nan")}]
)
def test_what_is_no_rectangle_is_not_taken(sent: dict[str, Any]) -> None:
    event: Any = SimpleNamespace(**({"top": 0, "right": 1, "bottom": 1} | sent))
    assert _read_rectangle(event) is None


def test_a_rectangle_ends_at_the_picture() -> None:
    event: Any = SimpleNamespace(left=-3, top=0.25, right=1e9, bottom=1)
    assert _read_rectangle(event) == (0, 0.25, 1, 1)
