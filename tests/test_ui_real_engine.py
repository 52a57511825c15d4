"""The page over the real engine and the bundled model, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import wait_until
from playwright.sync_api import expect

from vlm.config import Settings
from vlm.engine import Engine

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SCREENSHOTS = Path(__file__).resolve().parent.parent / "screenshots"
"""Ignored by git; README.md shows a copy of what the suite puts here."""
GREEDY = {
    "model": {"model": "bundled", "precision": "fp32"},
    "generation": {"temperature": 0.0, "max_new_tokens": 24},
    "picture": {"image_detail": "fast"},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The real engine, loading the bundled model in its own thread."""
    engine = Engine(Settings.model_validate(GREEDY))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def url(serve: Callable[..., str], engine: Engine) -> str:
    """The page over it."""
    return serve(engine, Settings.model_validate(GREEDY))


def test_a_follow_up_reuses_the_cache_and_retry_repeats_the_answer(
    engine: Engine, url: str, open_tab: Callable[..., Tab]
) -> None:
    tab = open_tab(url)
    tab.page.locator("#chat button.example").first.click()
    expect(tab.thumbnails).to_have_count(1)
    tab.start("How many shapes are there?")
    tab.wait_for_end()
    expect(tab.page.locator(".banner.bundled")).to_be_visible()
    first = tab.answers.first.inner_text()
    assert first.strip()

    tab.ask("What colour is the triangle?")
    second = tab.answers.last.inner_text()
    cost = tab.line.inner_text()
    tab.button("retry").click()
    expect(tab.line).not_to_have_text(cost)
    assert tab.answers.last.inner_text() == second
    assert tab.answers.first.inner_text() == first
    expect(tab.page.locator(".panel")).to_contain_text("Chats kept ready 1", use_inner_text=True)

    SCREENSHOTS.mkdir(exist_ok=True)
    tab.page.screenshot(path=SCREENSHOTS / "page.png")
    tab.button("clear").click()
    expect(tab.answers).to_have_count(0)
    wait_until(lambda: engine.memory().conversations == 0)
