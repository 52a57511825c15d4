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
SIZES = {"laptop": (1366, 768), "phone": (390, 844)}
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


def take_screenshots(tab: Tab) -> None:
    """Show the page as it is now in both languages, both themes and two sizes."""
    SCREENSHOTS.mkdir(exist_ok=True)
    tab.page.screenshot(path=SCREENSHOTS / "page.png")
    for language, title in (("en", "Talk to a picture"), ("zh", "与图片对话")):
        if tab.page.locator("h1").inner_text() != title:
            tab.page.locator("#language").click()
            expect(tab.page.locator("h1")).to_have_text(title)
        for size, (width, height) in SIZES.items():
            tab.page.set_viewport_size({"width": width, "height": height})
            for theme in ("light", "dark"):
                tab.page.evaluate(
                    "isDark => document.body.classList.toggle('dark', isDark)", theme == "dark"
                )
                tab.page.wait_for_timeout(100)  # colours that change slowly
                path = SCREENSHOTS / f"{size}-{language}-{theme}.png"
                tab.page.screenshot(path=path)
                assert path.stat().st_size > 10_000
    tab.page.evaluate("document.body.classList.remove('dark')")
    tab.page.set_viewport_size({"width": 1366, "height": 768})
    tab.page.locator("#language").click()
    expect(tab.page.locator("h1")).to_have_text("Talk to a picture")


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

    take_screenshots(tab)
    tab.button("clear").click()
    expect(tab.answers).to_have_count(0)
    wait_until(lambda: engine.memory().conversations == 0)
