"""Bound how often a password may be tried: what cannot be guessed fast cannot be guessed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from vlm.server.refusals import Refusal

_MOST_REMEMBERED = 10_000


class Attempts:
    """Wrong attempts by who made them; safe to use from several threads."""

    def __init__(
        self, most: int = 10, within_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with none.

        Args:
            most: wrong attempts that one may make within that time.
            within_s: how long one counts.
            clock: seconds.
        """
        self._most = most
        self._within_s = within_s
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, who: str) -> None:
        """Raise Refusal (429) when `who` was wrong too often; right ones wait then, too."""
        with self._lock:
            times = self._wrong.get(who, deque())
            while times and times[0] <= self._clock() - self._within_s:
                times.popleft()
            if len(times) < self._most:
                return
            wait_s = max(1, round(times[0] + self._within_s - self._clock()))
        raise Refusal(
            429,
            f"There were {self._most} wrong logins within {self._within_s:g} s. "
            f"Try again in {wait_s} s.",
            "too_many_attempts",
            retry_after_s=wait_s,
        )

    def note_wrong(self, who: str) -> None:
        """Count one wrong attempt."""
        with self._lock:
            times = self._wrong.setdefault(who, deque(maxlen=self._most))
            times.append(self._clock())
            self._wrong.move_to_end(who)
            if len(self._wrong) > _MOST_REMEMBERED:
                self._wrong.popitem(last=False)
