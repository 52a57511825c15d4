"""Boxes in a real browser: drawn on their picture, pointed at, saved, and gone in time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine, Script
from PIL import Image
from playwright.sync_api import Locator, expect

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]
OpenTab = Callable[..., Tab]
EVIL = "<img src=x onerror='window.bad=1'>"
ANSWER = json.dumps(
    [
        {"bbox_2d": [100, 250, 500, 750], "label": "red circle"},
        {"bbox_2d": [600, 250, 900, 750], "label": EVIL},
        {"point_2d": [500, 500], "label": "middle"},
    ]
)


def fold(tab: Tab) -> Locator:
    """The boxes under the chat; not on the page while there are none."""
    return tab.page.locator("#boxes")


def marks(tab: Tab) -> Locator:
    return fold(tab).locator(".stage .mark")


def save(tab: Tab, kind: str, folder: Path) -> Path:
    """Press a save button and keep the file under the name that the browser would give it."""
    with tab.page.expect_download() as download:
        fold(tab).locator(f"#boxes-{kind}").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_boxes_come_on_the_picture_with_their_labels(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    engine.script = Script(words=("Here they are:\n", ANSWER))
    tab.ask("List the objects with boxes", draw("white", (800, 400)))
    expect(fold(tab)).to_contain_text("Found in the picture: 3")
    expect(marks(tab)).to_have_text(["1 red circle", f"2 {EVIL}", "3 middle"])
    expect(fold(tab).locator("li")).to_have_count(3)
    expect(fold(tab).locator("li").first).to_contain_text("80, 100 – 400, 300")
    stage = fold(tab).locator(".stage").bounding_box()
    mark = marks(tab).first.bounding_box()
    assert stage and mark
    places = [
        (mark["x"] - stage["x"]) / stage["width"],
        (mark["y"] - stage["y"]) / stage["height"],
        mark["width"] / stage["width"],
        mark["height"] / stage["height"],
    ]
    assert places == pytest.approx([0.1, 0.25, 0.4, 0.5], abs=0.01)
    assert stage["width"] / stage["height"] == pytest.approx(2, abs=0.02)


def test_the_boxes_stand_beside_the_chat_and_can_be_folded(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    engine.script = Script(words=(ANSWER,))
    tab.ask("List the objects with boxes", draw("white", (800, 400)))
    expect(marks(tab)).to_have_count(3)
    chat, boxes = (tab.page.locator(name).bounding_box() for name in ("#chat", "#boxes"))
    assert chat and boxes
    assert chat["height"] >= 400 and chat["width"] >= 450
    assert boxes["x"] >= chat["x"] + chat["width"] and boxes["y"] == chat["y"]
    fold(tab).locator("> .label-wrap").click()
    expect(fold(tab).locator(".stage")).to_be_hidden()
    wide = tab.page.locator("#chat").bounding_box()
    assert wide and wide["width"] >= 900 and wide["height"] >= 380
    fold(tab).locator("> .label-wrap").click()  # the next test uses the same tab
    expect(fold(tab).locator(".stage")).to_be_visible()


def test_no_label_runs_as_html(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    engine.script = Script(words=(ANSWER,))
    tab.ask("List the objects with boxes", draw("white"))
    expect(fold(tab).locator("li").nth(1)).to_contain_text(EVIL)
    expect(fold(tab).locator("img")).to_have_count(1)
    assert tab.page.evaluate("window.bad") is None


def test_pointing_at_a_box_or_its_name_dims_the_others(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    engine.script = Script(words=(ANSWER,))
    tab.ask("List the objects with boxes", draw("white", (800, 400)))
    marks(tab).first.hover()
    expect(marks(tab).nth(1)).to_have_css("opacity", "0.18")
    expect(marks(tab).first).to_have_css("opacity", "1")
    expect(fold(tab).locator("li button").first).to_have_class(re.compile("chosen"))
    fold(tab).locator("li button").nth(1).hover()
    expect(marks(tab).first).to_have_css("opacity", "0.18")
    expect(marks(tab).nth(1)).to_have_css("opacity", "1")
    tab.box.hover()
    expect(marks(tab).first).to_have_css("opacity", "1")


def test_the_names_are_reached_by_keyboard(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    engine.script = Script(words=(ANSWER,))
    tab.ask("List the objects with boxes", draw("white", (800, 400)))
    tab.box.hover()
    fold(tab).locator("li button").first.focus()
    tab.page.keyboard.press("Tab")
    expect(marks(tab).nth(1)).to_have_css("opacity", "1")
    expect(marks(tab).first).to_have_css("opacity", "0.18")


def test_the_picture_and_its_boxes_are_saved_under_plain_names(
    tab: Tab, engine: FakeEngine, draw: Draw, tmp_path: Path
) -> None:
    engine.script = Script(words=(ANSWER,))
    evil = draw("white", (800, 400), "..<b> secret name.png")
    tab.ask("List the objects with boxes", evil)
    png, file = (save(tab, kind, tmp_path) for kind in ("png", "json"))
    assert (png.name, file.name) == ("picture-1-boxes.png", "picture-1-boxes.json")
    with Image.open(png) as image:
        assert image.format == "PNG" and image.size == (800, 400)
        assert image.getpixel((81, 200)) == (0xD5, 0x5E, 0x00)
        assert image.getpixel((240, 200)) == (255, 255, 255)
    told = json.loads(file.read_text(encoding="utf-8"))
    assert (told["width_px"], told["height_px"]) == (800, 400)
    assert told["boxes"][0] == {"bbox_2d": [80, 100, 400, 300], "label": "red circle"}
    assert told["boxes"][2] == {"point_2d": [400, 200], "label": "middle"}
    assert "gradio" not in tab.page.locator("body").inner_text()
    assert "/tmp" not in fold(tab).inner_html() and "/shown/" not in fold(tab).inner_html()


def test_the_question_names_the_picture(
    tab: Tab, engine: FakeEngine, draw: Draw, tmp_path: Path
) -> None:
    tab.ask("Two pictures", draw("red", (300, 200)), draw("blue", (200, 300)))
    engine.script = Script(words=(ANSWER,))
    tab.ask("Find the circle in the first picture")
    expect(fold(tab)).to_contain_text("Found in picture 1: 3")
    assert json.loads(save(tab, "json", tmp_path).read_text("utf-8"))["width_px"] == 300
    tab.ask("And now?")
    expect(fold(tab)).to_contain_text("Found in picture 2: 3")
    assert json.loads(save(tab, "json", tmp_path).read_text("utf-8"))["width_px"] == 200


def test_boxes_belong_to_the_last_answer_only(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    engine.script = Script(words=(ANSWER,))
    tab.ask("List the objects with boxes", draw("white"))
    expect(marks(tab)).to_have_count(3)
    engine.script = Script(by_step=True)
    tab.start("What colour?")
    expect(fold(tab)).to_be_hidden()
    engine.step(3)
    tab.wait_for_end()
    expect(fold(tab)).to_have_count(0)
    tab.button("undo").click()
    expect(marks(tab)).to_have_count(3)
    tab.button("clear").click()
    expect(fold(tab)).to_have_count(0)


def test_a_stopped_answer_shows_the_boxes_it_has(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    engine.script = Script(words=(ANSWER[:85], ANSWER[85:]), by_step=True)
    tab.start("List the objects with boxes", draw("white"))
    engine.step()
    expect(tab.answers).to_contain_text("red circle")
    tab.stop.click()
    tab.wait_for_end()
    expect(marks(tab)).to_have_text(["1 red circle"])


@pytest.mark.parametrize("size", [(1366, 768), (390, 844)])
def test_the_input_stays_on_the_screen_in_chinese_too(
    engine: FakeEngine, open_tab: OpenTab, draw: Draw, size: tuple[int, int]
) -> None:
    width, height = size
    tab = open_tab(viewport={"width": width, "height": height}, locale="zh-CN")
    engine.script = Script(words=(ANSWER,))
    tab.ask("标出物体", draw("white", (640, 480)))
    expect(fold(tab)).to_contain_text("在图片中找到：3")
    expect(fold(tab)).to_contain_text("保存带框的图片")
    expect(tab.box).to_be_in_viewport(ratio=0.9)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tab.page.locator("#language").click()
    expect(fold(tab)).to_contain_text("Save picture with boxes")
    expect(marks(tab)).to_have_count(3)
