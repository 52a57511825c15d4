"""The page over a server, in a real browser: its state, an answer, Stop, another language."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_tab import Tab
from fake_engine import wait_until
from fake_upstream import Make, Upstream, chunk
from playwright.sync_api import expect

pytest_plugins = ("browser_fixtures", "remote_fixtures")
# Gradio leaves event loops open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_the_page_over_a_server(
    serve: Callable[..., str],
    open_tab: Callable[..., Tab],
    draw: Callable[..., Path],
    upstream: Upstream,
    make_remote: Make,
) -> None:
    upstream.models_status = 401
    engine = make_remote(upstream.url, is_ready=False)
    tab = open_tab(serve(engine))
    failed = tab.page.locator(".banner.failed")
    expect(failed).to_contain_text(f"{upstream.host} wants a key.")
    upstream.models_status = 200
    tab.page.locator("#retry-load").click()
    banner = tab.page.locator(".banner")
    expect(banner).to_contain_text(f"Remote: lab/first-2B at {upstream.host}.")
    expect(tab.page.locator(".panel")).to_contain_text(upstream.host)

    tab.ask("What is it?", draw("red"))
    expect(tab.answers.last).to_contain_text("A red circle.")
    expect(tab.line).to_have_text(
        re.compile(r"^[\d.]+ m?s to the first word · .*226 tokens in, 12 out · ")
    )
    (sent,) = upstream.requests
    assert sent["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png;")

    upstream.packets, upstream.holds = [chunk("Half of")], "after"
    tab.start("And now?")
    expect(tab.answers.last).to_contain_text("Half of")
    tab.stop.click()
    tab.wait_for_end()
    wait_until(lambda: upstream.left_at)
    expect(tab.answers.last).to_contain_text("Half of")
    tab.button("language").click()
    expect(banner).to_contain_text(f"远程：{upstream.host} 上的 lab/first-2B。")
