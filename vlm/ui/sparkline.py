"""Draw numbers over the last two minutes as a small line, in SVG."""

from __future__ import annotations

import html
from collections.abc import Iterable

from vlm.ui.readings import KEPT_S

_HEIGHT = 30.0
_LONGEST_GAP_S = 10.0
"""Readings further apart were not looked at in between: the line is broken there."""


def sparkline(values: Iterable[tuple[float, float]], top: float, label: str) -> str:
    """Draw (age in seconds, value) from 0 to `top`, oldest first; the right edge is now."""
    path, last_age_s = [], None
    for age_s, value in values:
        x = KEPT_S - age_s
        y = _HEIGHT * (1 - min(1.0, max(0.0, value / top))) if top > 0 else _HEIGHT
        is_begin = last_age_s is None or last_age_s - age_s > _LONGEST_GAP_S
        # A line of no length makes a single reading a dot.
        path.append(f"M{x:.1f} {y:.1f}h0" if is_begin else f"L{x:.1f} {y:.1f}")
        last_age_s = age_s
    return (
        f'<svg class="spark" viewBox="0 0 {KEPT_S:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" '
        f'role="img" aria-label="{html.escape(label)}"><path d="{"".join(path)}"/></svg>'
    )
