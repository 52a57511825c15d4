"""Before and during an answer, as a person sees it: the cost, the warning and the wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import READY, FakeEngine, Script, wait_until
from playwright.sync_api import expect

from vlm.chat import Piece, Rates
from vlm.ui.texts import EN, ZH, Texts

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]
FAST, BALANCED, FINE = range(3)


def choose_detail(tab: Tab, level: int) -> None:
    tab.page.locator("#detail label").nth(level).click()


def switch_language(tab: Tab, texts: Texts) -> None:
    """Switch to a language; a press too soon after the one before would be ignored."""
    tab.page.locator("#language").click()
    expect(tab.page.locator("#language")).to_have_text(texts.other_language)


def hold(engine: FakeEngine, context_tokens: int) -> None:
    """Let the model hold so many tokens."""
    assert READY.capacity is not None
    engine.model_state = replace(
        READY, capacity=replace(READY.capacity, context_tokens=context_tokens)
    )


def test_the_cost_stands_under_the_input_and_follows_pictures_detail_and_language(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    engine.measured = Rates(vision_tps=40.0, prefill_tps=80.0)
    engine.may_run.clear()  # nothing is read ahead yet
    choose_detail(tab, BALANCED)
    cost = tab.page.locator("#cost")
    tab.attach(draw("red", (1280, 720)))
    expect(cost).to_have_text("1280 × 720 → 480 visual tokens · about 20 s to the first word")
    below = cost.bounding_box()
    box = tab.page.locator("#box").bounding_box()
    assert below is not None and box is not None and below["y"] >= box["y"] + box["height"]
    choose_detail(tab, FAST)
    expect(cost).to_have_text("1280 × 720 → 252 visual tokens · about 10 s to the first word")
    switch_language(tab, ZH)
    expect(cost).to_have_text("1280 × 720 → 252 个视觉词元 · 约 10 秒后出现首字")
    switch_language(tab, EN)
    tab.attach(draw("blue", (64, 64)))
    expect(cost).to_contain_text("2 pictures → 316 visual tokens")
    engine.may_run.set()
    expect(cost).to_have_text(
        "2 pictures → 316 visual tokens · already read · the answer starts at once"
    )
    choose_detail(tab, BALANCED)
    wait_until(lambda: engine.read[-1].request.max_visual_tokens == 512)


def test_short_typing_tells_the_server_nothing_and_a_long_paste_is_weighed(
    tab: Tab, engine: FakeEngine
) -> None:
    engine.measured = Rates(prefill_tps=80.0)
    cost, told = tab.page.locator("#cost"), tab.page.locator("#typed textarea, #typed input")
    tab.box.press_sequentially("a")
    expect(told).to_have_value("1")
    tab.box.press_sequentially(" short question")
    expect(told).to_have_value("1")
    tab.box.fill("word " * 400)
    expect(told).to_have_value("10")
    expect(cost).to_contain_text("about 8 s to the first word")
    tab.box.fill("")
    expect(cost).not_to_contain_text("first word")


def test_what_does_not_fit_is_said_with_buttons_that_mend_it(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    lower, drop = tab.page.locator("#lower-detail"), tab.page.locator("#drop-oldest")
    warning = tab.page.locator("#cost .warning")
    choose_detail(tab, BALANCED)
    tab.ask("First", draw("red", (1280, 720)))
    tab.ask("Second")
    hold(engine, 1500)
    tab.attach(draw("blue", (1280, 720)))
    expect(warning).to_contain_text("The answer may be cut off")
    expect(drop).to_be_visible()
    lower.click()
    expect(tab.page.locator("#detail input").nth(FAST)).to_be_checked()
    expect(warning).to_have_count(0)
    expect(lower).to_be_hidden()
    hold(engine, 820)
    choose_detail(tab, BALANCED)
    expect(warning).to_contain_text("does not fit")
    drop.click()
    expect(tab.questions.filter(has_text="First")).to_have_count(0)
    expect(drop).to_be_hidden()
    hold(engine, 8192)
    tab.box.fill("Third")
    tab.box.press("Enter")
    wait_until(lambda: len(engine.requests) == 3)
    tab.wait_for_end()
    assert "First" not in [message.text for message in engine.requests[-1].messages]
    choose_detail(tab, BALANCED)


def test_enter_beside_a_running_answer_says_so_and_keeps_what_is_typed(
    tab: Tab, engine: FakeEngine
) -> None:
    engine.script = Script(by_step=True)
    tab.start("One")
    expect(tab.stop).to_be_visible()
    tab.box.fill("Two")
    tab.box.press("Enter")
    expect(tab.page.locator("#note")).to_have_text(EN.still_answering)
    expect(tab.box).to_have_value("Two")
    engine.step(3)
    tab.wait_for_end()
    expect(tab.page.locator("#note")).to_be_empty()
    expect(tab.box).to_have_value("Two")
    assert len(engine.requests) == 1


def test_the_wait_in_a_queue_tells_seconds_and_changes_its_language(
    tab: Tab, engine: FakeEngine
) -> None:
    engine.measured = Rates(turn_s=30.0)
    tab.ask("Before")
    engine.script = Script(before=(Piece("queued", queue_position=2),), by_step=True)
    tab.start("Look")
    engine.step()
    expect(tab.answers.last).to_contain_text("2 questions are ahead of yours, about 60 s ·")
    switch_language(tab, ZH)
    expect(tab.answers.last).to_contain_text("前面还有 2 个问题，约")
    expect(tab.line).to_contain_text("词元/秒")
    engine.step(3)
    tab.wait_for_end()
    expect(tab.line).to_contain_text(ZH.end("stop"))
    switch_language(tab, EN)
    expect(tab.line).to_contain_text(EN.end("stop"))


def test_a_silent_answer_keeps_moving(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(by_step=True)
    tab.start("Look")
    engine.step()
    expect(tab.answers.last.locator(".wait")).to_contain_text("Writing")
    expect(tab.answers.last).to_contain_text("A")
    before = tab.answers.last.inner_text()
    expect(tab.answers.last).not_to_have_text(before, timeout=4000)
    engine.step(2)
    tab.wait_for_end()
    expect(tab.answers.last).to_have_text("A red circle.")
