"""Pictures are read while the question is typed: what the page asks for, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine, Script, wait_until
from playwright.sync_api import expect

from vlm.chat import Piece

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]


def test_a_picture_in_the_input_is_read_before_the_question(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    engine.script = Script(ahead=(Piece("vision", progress=0.5), Piece("prefill", progress=0.5)))
    tab.attach(draw("red"))
    status = tab.page.locator("#cost")
    expect(status).to_have_text("120 × 80 → 70 visual tokens · already read")
    assert len(engine.read) == 1 and engine.requests == []
    assert len(engine.read[0].request.messages[-1].pictures) == 1
    tab.box.press_sequentially("What is it?")
    assert len(engine.read) == 1, "typing must not read the picture again"
    tab.box.press("Enter")
    tab.wait_for_end()
    expect(status).to_be_empty()
    asked, read = engine.requests[0], engine.read[0].request
    assert asked.conversation_id == read.conversation_id
    assert asked.max_visual_tokens == read.max_visual_tokens
    pictures = [message.pictures[0].content_hash for message in (*asked.messages, *read.messages)]
    assert pictures[0] == pictures[1]


def test_a_second_picture_is_read_together_with_the_first(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.attach(draw("red"))
    wait_until(lambda: len(engine.read) == 1)
    tab.attach(draw("blue"))
    wait_until(lambda: len(engine.read) == 2)
    assert len(engine.read[1].request.messages[-1].pictures) == 2


def test_a_follow_up_picture_is_read_with_the_chat_before_it(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.ask("Hello")
    tab.attach(draw("red"))
    wait_until(lambda: len(engine.read) == 1)
    assert [message.role for message in engine.read[0].request.messages] == [
        "user", "assistant", "user",
    ]  # fmt: skip


def test_a_file_that_is_no_picture_is_not_read_ahead_and_not_yet_blamed(
    tab: Tab, engine: FakeEngine, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    tab.attach(broken)
    tab.box.press_sequentially("What is it?")
    expect(tab.page.locator("#cost")).to_be_empty()
    assert engine.read == []


def test_the_status_speaks_chinese_on_the_chinese_page(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.page.locator("#language").click()
    tab.attach(draw("red"))
    expect(tab.page.locator("#cost")).to_have_text("120 × 80 → 70 个视觉词元 · 已读取")


def test_the_system_prompt_is_part_of_what_is_read(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.page.locator("#options button").first.click()
    tab.page.locator("#system-prompt textarea").fill("Be brief.")
    tab.page.locator("#system-prompt textarea").blur()
    tab.attach(draw("green"))
    wait_until(lambda: len(engine.read) == 1)
    told = engine.read[0].request.messages
    assert [(message.role, message.text) for message in told] == [
        ("system", "Be brief."), ("user", ""),
    ]  # fmt: skip
