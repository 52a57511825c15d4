"""Remember two minutes of memory and CPU readings of one engine, for all tabs of a page."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from vlm.chat import MemoryReading

KEPT_S = 120.0
FRESH_S = 1.0
"""A reading so young is given again: many tabs cost no more than one."""


class Point(NamedTuple):
    """One reading as a sparkline needs it."""

    age_s: float
    rss_bytes: int
    cpu_percent: float


class Readings:
    """The readings of one engine; never more than KEPT_S / FRESH_S of them."""

    def __init__(
        self, read: Callable[[], MemoryReading], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Remember how to read; nothing is read before somebody looks."""
        self._read = read
        self._clock = clock
        self._kept: deque[tuple[float, MemoryReading]] = deque(maxlen=int(KEPT_S / FRESH_S) + 1)
        self._lock = threading.Lock()

    def latest(self, is_new: bool = False) -> MemoryReading:
        """Give a reading not older than FRESH_S; with `is_new`, one of this moment."""
        with self._lock:
            now_s = self._clock()
            while self._kept and now_s - self._kept[0][0] > KEPT_S:
                self._kept.popleft()
            is_fresh = bool(self._kept) and now_s - self._kept[-1][0] < FRESH_S
            if is_fresh and not is_new:
                return self._kept[-1][1]
            if is_fresh:
                self._kept.pop()
            self._kept.append((now_s, self._read()))
            return self._kept[-1][1]

    def points(self) -> list[Point]:
        """The last KEPT_S, oldest first; while nobody looked there are none."""
        with self._lock:
            now_s, kept = self._clock(), list(self._kept)
        return [
            Point(now_s - at_s, reading.rss_bytes, reading.cpu_percent)
            for at_s, reading in kept
            if now_s - at_s <= KEPT_S
        ]
