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
from fake_engine import READY, FakeEngine, Script
from PIL import Image
from playwright.sync_api import Browser, Error, expect, sync_playwright

import demo
from vlm.config import Settings
from vlm.ui.look import launch_options

_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --use-fake-device-for-media-stream "
    "--use-fake-ui-for-media-stream"
).split()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests; in CI a missing one is a failure."""
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    expect.set_options(timeout=40_000)
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
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Serve a page over an engine; returns its address."""
    os.environ["GRADIO_TEMP_DIR"] = str(tmp_path_factory.mktemp("gradio"))
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
    engine.close()
    engine.script, engine.model_state = Script(), READY
    engine.is_full, engine.load_retries = False, 0
    engine.answers.clear()
    engine.forgotten.clear()
    engine.may_run.set()
    yield engine
    engine.close()
    engine.may_run.set()


@pytest.fixture
def open_tab(browser: Browser, fake_page: tuple[FakeEngine, str]) -> Iterator[Callable[..., Tab]]:
    """Open tabs; at the end nothing may have failed in them or asked another host."""
    contexts, faults = [], []

    def open_one(url: str = fake_page[1], **options: Any) -> Tab:
        settings = {"viewport": {"width": 1366, "height": 768}, "locale": "en-GB"} | options
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
        page.on("request", lambda request: _check_address(request.url, url, faults))
        page.on(
            "console",
            lambda said: faults.append(said.text) if "Content Security" in said.text else None,
        )
        page.goto(url)
        expect(page.locator(".panel")).to_be_visible()
        return Tab(page)

    yield open_one
    for context in contexts:
        context.close()
    assert not faults


def _check_address(asked: str, url: str, faults: list[str]) -> None:
    if not asked.startswith((url, "data:", "blob:")):
        faults.append(f"asked {asked}")


@pytest.fixture
def tab(engine: FakeEngine, open_tab: Callable[..., Tab]) -> Tab:
    """A tab of 1366 x 768 in English."""
    return open_tab()


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
