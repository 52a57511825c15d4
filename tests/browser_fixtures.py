"""Fixtures for tests in a real headless Chromium: a browser, a served page, a tab."""

from __future__ import annotations

import gc
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine
from PIL import Image
from playwright.sync_api import Browser, Error, expect, sync_playwright

import demo
from vlm.config import Settings
from vlm.ui.look import launch_options

# A busy machine needs longer for the same; nothing waits that long when all is well.
_TIMEOUT_MS = 1000 * float(os.environ.get("BROWSER_TIMEOUT_S", "20"))
_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --use-fake-device-for-media-stream "
    "--use-fake-ui-for-media-stream"
).split()
_LAPTOP = {"viewport": {"width": 1366, "height": 768}, "locale": "en-GB"}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests; in CI a missing one is a failure."""
    found = map(shutil.which, (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser"))
    system = next(filter(None, found), None)
    expect.set_options(timeout=_TIMEOUT_MS)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=system, args=_FLAGS)
        except Error as error:
            if os.environ.get("CI"):
                pytest.fail(f"no headless Chromium: {error}")
            pytest.skip("no headless Chromium here; ./launch.sh test installs one")
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Serve a page over an engine; returns its address."""
    pages = []

    def start(engine: Any, settings: Settings | None = None) -> str:
        settings = settings or Settings()
        page = demo.build_demo(engine, settings)
        options = launch_options(settings)
        _, url, _ = page.launch(quiet=True, prevent_thread_lock=True, **options)
        pages.append(page)
        return str(url)

    yield start
    for page in pages:
        page.close(verbose=False)
    pages.clear()
    with warnings.catch_warnings():
        # Gradio leaves event loops open; collected here, they trouble no other test.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def fake_page(serve: Callable[..., str]) -> tuple[FakeEngine, str]:
    """A page over one FakeEngine, for all tests that need no other."""
    engine = FakeEngine()
    return engine, serve(engine)


@pytest.fixture
def engine(fake_page: tuple[FakeEngine, str]) -> Iterator[FakeEngine]:
    """The FakeEngine behind the page, as new."""
    engine = fake_page[0]
    engine.reset()
    yield engine
    engine.reset()


@pytest.fixture(scope="session")
def faults() -> list[str]:
    """What went wrong in the tabs: script errors, requests to other hosts."""
    return []


@pytest.fixture
def no_faults(faults: list[str]) -> Iterator[None]:
    """Fail the test in which something went wrong in a tab."""
    faults.clear()
    yield
    assert not faults


def _open(browser: Browser, url: str, faults: list[str], **options: Any) -> Tab:
    page = browser.new_context(**(_LAPTOP | options)).new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
    page.on("request", lambda request: _check_address(request.url, url, faults))
    return Tab(page, url)


def _check_address(asked: str, url: str, faults: list[str]) -> None:
    if not asked.startswith((url, "data:", "blob:")):
        faults.append(f"asked {asked}")


@pytest.fixture
def open_tab(
    browser: Browser, fake_page: tuple[FakeEngine, str], faults: list[str], no_faults: None
) -> Iterator[Callable[..., Tab]]:
    """Open new tabs, each of another visitor; at the end nothing may have failed in them."""
    tabs: list[Tab] = []

    def open_one(url: str = fake_page[1], **options: Any) -> Tab:
        tabs.append(_open(browser, url, faults, **options))
        return tabs[-1].load()

    yield open_one
    for tab in tabs:
        tab.page.context.close()


@pytest.fixture(scope="session")
def shared_tab(browser: Browser, fake_page: tuple[FakeEngine, str], faults: list[str]) -> Tab:
    """One tab for most tests, because opening the page takes longer than they do."""
    return _open(browser, fake_page[1], faults).load()


@pytest.fixture
def tab(engine: FakeEngine, shared_tab: Tab, no_faults: None) -> Iterator[Tab]:
    """A tab of 1366 x 768 in English, with an empty chat."""
    shared_tab.empty()
    engine.reset()
    yield shared_tab
    engine.reset()


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """Write picture files of one colour."""

    def draw_one(
        colour: str, size: tuple[int, int] = (120, 80), name: str = "", **save: Any
    ) -> Path:
        path = tmp_path / (name or f"{colour}.png")
        Image.new("RGB", size, colour).save(path, **save)
        return path

    return draw_one
