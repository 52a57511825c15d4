"""A server here that speaks OpenAI's API, and remote engines over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fake_engine import wait_until
from fake_upstream import Make, Upstream, running_upstream

from vlm.config import Settings
from vlm.remote.engine import RemoteEngine


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """A server that answers well until a test changes that."""
    with running_upstream() as served:
        yield served


@pytest.fixture
def make_remote() -> Iterator[Make]:
    """Makes engines that are closed in the end."""
    with ExitStack() as stack:

        def made(url: str, *, is_ready: bool = True, **sections: Any) -> RemoteEngine:
            keys = {"kind": "openai", "base_url": url} | sections.pop("engine", {})
            engine = RemoteEngine(Settings.model_validate({"engine": keys, **sections}))
            stack.callback(engine.close)
            if is_ready:
                wait_until(lambda: engine.state().stage == "ready", timeout_s=30)
            return engine

        yield made
