"""Eight visitors at once never get a wrong answer, lose none, and leave nothing behind."""

from __future__ import annotations

import os

import pytest
from soak import soak

SECONDS = float(os.environ.get("SOAK_S", "60"))
"""The long form is 1800: python tests/soak.py"""


@pytest.mark.slow
def test_eight_visitors_at_once_get_what_each_got_alone() -> None:
    report = soak(SECONDS)
    assert not report.faults, "\n".join(report.faults)
    for kind in ("page", "api", "endpoint", "left", "stopped", "garbage refused"):
        assert report.counts[kind], f"nobody was there: {kind}"
