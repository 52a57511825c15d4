"""The panel, the folds and the keyboard in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine, wait_until
from playwright.sync_api import expect

from vlm.ui.texts import EN

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]
OpenTab = Callable[..., Tab]


def show(tab: Tab, is_shown: bool) -> None:
    """Bring the tab to the front or behind another one, as far as the page can tell."""
    tab.page.evaluate(
        """(hidden) => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }""",
        not is_shown,
    )


def test_the_panel_is_read_only_while_its_tab_is_in_sight(tab: Tab, engine: FakeEngine) -> None:
    before = engine.memory_calls
    wait_until(lambda: engine.memory_calls >= before + 2, 20)
    show(tab, False)
    try:
        tab.page.wait_for_timeout(500)  # a reading may be on its way
        before = engine.memory_calls
        tab.page.wait_for_timeout(4500)
        assert engine.memory_calls == before
    finally:
        show(tab, True)
    wait_until(lambda: engine.memory_calls > before, 20)


def test_freeing_and_warming_up_show_their_effect(tab: Tab, engine: FakeEngine) -> None:
    effect, panel = tab.page.locator("#effect"), tab.page.locator(".panel")
    expect(panel.locator("svg[role=img]")).to_have_count(2)
    tab.page.locator("#free-caches").click()
    expect(effect).to_have_text("Freed 128 MiB.")
    expect(panel).to_contain_text("chats 0 B")
    tab.page.locator("#warm-up").click()
    expect(effect).to_have_text("Ready: first token after 1.2 s.")
    expect(tab.page.locator("#warm-up")).to_be_enabled()
    assert engine.forgotten == [engine.requests[0].conversation_id]


def test_undo_keeps_what_is_typed_and_brings_the_question_back(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.ask("What is it?", draw("red"))
    tab.attach(draw("blue"))
    tab.box.fill("And that?")
    tab.button("undo").click()
    expect(tab.box).to_have_value("What is it?\nAnd that?")
    expect(tab.thumbnails).to_have_count(2)
    expect(tab.answers).to_have_count(0)


def test_a_tasks_detail_is_for_its_question_only_and_retry_repeats_it(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    balanced = tab.page.locator("#detail").get_by_label("Balanced")
    fine = tab.page.locator("#detail").get_by_label("Fine")
    tab.attach(draw("red"))
    tab.page.locator("#task-read").click()
    expect(fine).to_be_checked()
    expect(tab.box).to_have_value(EN.task_prompt("read"))
    tab.box.press("Enter")
    expect(tab.answers).to_have_count(1)
    tab.wait_for_end()
    expect(balanced).to_be_checked()
    tab.button("retry").click()
    wait_until(lambda: len(engine.requests) == 2)
    tab.wait_for_end()
    expect(tab.answers).to_have_count(1)
    tab.ask("And this?")
    asked = [(r.max_visual_tokens, r.sampling.temperature) for r in engine.requests]
    assert asked == [(1280, 0.0), (1280, 0.0), (512, 0.7)]


def test_what_is_unfolded_beside_the_chat_comes_into_sight(tab: Tab, engine: FakeEngine) -> None:
    fold = tab.page.locator("#options > .label-wrap")
    expect(fold).to_be_in_viewport(ratio=0.9)
    fold.click()
    expect(tab.page.locator("#preset")).to_be_in_viewport(ratio=0.9)
    expect(tab.page.get_by_role("spinbutton", name="Temperature")).to_be_in_viewport()
    expect(tab.box).to_be_in_viewport(ratio=0.9)
    fold.click()
    expect(tab.page.locator("#preset")).to_be_hidden()
    expect(tab.page.locator(".panel")).to_be_in_viewport(ratio=0.9)


def test_the_language_is_remembered_and_title_and_icon_are_there(
    engine: FakeEngine, open_tab: OpenTab
) -> None:
    tab = open_tab()
    expect(tab.page).to_have_title("Talk to a picture · Qwen3-VL")
    icon = tab.page.request.get(f"{tab.url.rstrip('/')}/favicon.ico")
    assert icon.ok and "<svg" in icon.text()
    expect(tab.page.locator("html")).to_have_attribute("lang", "en")
    tab.page.locator("#language").click()
    expect(tab.page.locator("html")).to_have_attribute("lang", "zh-CN")
    tab.page.wait_for_function("localStorage.getItem('vlm-language') === 'zh'")
    tab.load()
    expect(tab.page.locator("h1")).to_have_text("与图片对话")
    expect(tab.page.locator("html")).to_have_attribute("lang", "zh-CN")


STOP = """() => {
    const at = document.activeElement;
    const ring = (style) => (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0)
        || style.boxShadow !== 'none';
    const rings = [at, at.closest('label'), at.closest('.form')].filter(Boolean);
    const named = at.closest('[id]:not([id=""], [id^=range], [id^=html-])');
    return {
        id: at.id || named?.id || at.tagName,
        seen: rings.some((part) => ring(getComputedStyle(part))),
        name: at.getAttribute('aria-label') || at.title || at.innerText || at.placeholder
            || at.labels?.[0]?.innerText || '',
        is_end: at === document.body,
    };
}"""


def test_the_keyboard_reaches_everything_and_its_place_is_seen(
    tab: Tab, engine: FakeEngine
) -> None:
    tab.ask("What is it?")
    tab.page.locator("h1").click()  # the keyboard goes on from here
    stops = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        stop = tab.page.evaluate(STOP)
        if stop["is_end"]:
            break
        stops.append(stop)
    reached = {stop["id"] for stop in stops}
    wanted = {
        "language", "box", "task-describe", "task-translate", "retry", "undo", "part", "clear",
        "free-caches", "warm-up", "detail", "webcam-fold", "options", "line",
    }  # fmt: skip
    assert wanted <= reached
    assert not [stop for stop in stops if not stop["seen"]]
    assert not [stop for stop in stops if not stop["name"].strip()]
