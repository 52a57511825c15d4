"""Tell how much longer something takes, from how far it came since it was first seen."""

from __future__ import annotations

LEAST_PROGRESS = 0.05
LEAST_S = 0.5
"""What must have been seen before a pace is believed."""


class Pace:
    """The pace of one piece of work whose progress goes from 0 to 1."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = -1.0
        self._ends_at_s: float | None = None

    def note(self, progress: float, now_s: float) -> None:
        """Note how far the work is; the same progress again changes nothing."""
        if self._first is None:
            self._first = progress, now_s
        if progress == self._last:
            return
        self._last = progress
        came, passed_s = progress - self._first[0], now_s - self._first[1]
        if came >= LEAST_PROGRESS and passed_s >= LEAST_S:
            self._ends_at_s = now_s + (1.0 - progress) * passed_s / came

    def left_s(self, now_s: float) -> float | None:
        """Seconds left; None while unknown, and once it takes longer than was believed."""
        if self._ends_at_s is None or self._ends_at_s - now_s < LEAST_S:
            return None
        return self._ends_at_s - now_s
