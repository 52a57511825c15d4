"""Fixtures for tests of the API over one FakeEngine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from fake_engine import FakeEngine
from served_api import serving


@pytest.fixture(scope="session")
def fake_api() -> Iterator[tuple[FakeEngine, str]]:
    """The API over one FakeEngine, for all tests that need no other settings."""
    engine = FakeEngine()
    with serving(engine) as url:
        yield engine, url


@pytest.fixture
def api_engine(fake_api: tuple[FakeEngine, str]) -> Iterator[FakeEngine]:
    """The FakeEngine behind the API, as new."""
    engine = fake_api[0]
    engine.reset()
    yield engine
    engine.reset()


@pytest.fixture
def web(fake_api: tuple[FakeEngine, str], api_engine: FakeEngine) -> Iterator[httpx2.Client]:
    """A plain HTTP client of the API over the FakeEngine."""
    with httpx2.Client(base_url=fake_api[1], timeout=30, trust_env=False) as client:
        yield client
