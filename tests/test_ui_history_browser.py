"""Chats outlive a reload and a restart in the browser that had them, and in no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine, Script, wait_until
from playwright.sync_api import expect

from vlm.ui.texts import EN

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]
OpenTab = Callable[..., Tab]


def test_a_reload_shows_the_chat_again_with_its_full_picture(
    open_tab: OpenTab, engine: FakeEngine, draw: Draw
) -> None:
    tab = open_tab()
    tab.ask("What is it?", draw("red", (900, 600)))
    tab.reload()
    expect(tab.questions.last).to_have_text("What is it?")
    expect(tab.answers).to_have_text("A red circle.")
    expect(tab.pictures).to_have_count(1)
    tab.ask("And now?")
    first, second = engine.requests
    assert [m.text for m in second.messages] == ["What is it?", "A red circle.", "And now?"]
    assert second.messages[0].pictures == first.messages[0].pictures
