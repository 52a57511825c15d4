"""Memory and CPU readings: this process, and what the machine or its container still gives.

Covered: resident bytes of this process with its peak, free memory under cgroup limits, CPU use.
Not covered: what of it is weights or caches, which only the engine knows.
Every reading takes well under a millisecond and never waits.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from vlm.cgroup import Cgroups
from vlm.hardware import this_machine

# Readings closer together than this would divide by almost nothing and show noise.
_SHORTEST_CPU_WINDOW_S = 0.25


@dataclass(frozen=True)
class FreeMemory:
    """What may still be taken, and of how much, in bytes."""

    available_bytes: int
    total_bytes: int
    is_container_limit: bool
    """True when total_bytes is a cgroup limit below the machine's memory."""


@dataclass(frozen=True)
class ProcessReading:
    """What this process and its machine (or container) use."""

    rss_bytes: int
    peak_rss_bytes: int
    free: FreeMemory
    cpu_percent: float
    """CPU time of this process, of the usable cores together, 0..100."""
    cores: int


def free_memory(groups: Cgroups | None = None) -> FreeMemory:
    """Read what this process may still take: the machine's free memory or its container's."""
    groups = groups or Cgroups()
    machine = psutil.virtual_memory()
    available, total = int(machine.available), int(machine.total)
    limit = groups.memory_limit_bytes()
    left = groups.memory_available_bytes()
    is_limited = limit is not None and limit < total
    return FreeMemory(
        available_bytes=available if left is None else min(available, left),
        total_bytes=limit if limit is not None and is_limited else total,
        is_container_limit=is_limited,
    )


def rss_bytes() -> int:
    """Resident bytes of this process, shared and file pages included."""
    return int(psutil.Process().memory_info().rss)


def peak_rss_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The most bytes that were ever resident in this process."""
    # getrusage would include the peak of the program that started this one (Linux keeps it
    # over exec), so the kernel's own high-water mark comes first.
    try:
        mark = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    except OSError:
        mark = None
    if mark:
        return int(mark[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


class ProcessProbe:
    """Reads this process again and again; CPU use is over the time since the reading before.

    One probe may be read from several threads.
    """

    def __init__(self, cores: int | None = None, groups: Cgroups | None = None) -> None:
        self._cores = cores or this_machine().usable_cores
        self._groups = groups or Cgroups()
        self._process = psutil.Process()
        self._lock = threading.Lock()
        self._since_s = time.monotonic()
        self._used_s = self._cpu_time_s()
        self._cpu_percent = 0.0

    def read(self) -> ProcessReading:
        """Read memory and CPU use now."""
        rss = int(self._process.memory_info().rss)
        return ProcessReading(
            rss_bytes=rss,
            peak_rss_bytes=max(rss, peak_rss_bytes()),
            free=free_memory(self._groups),
            cpu_percent=self._read_cpu_percent(),
            cores=self._cores,
        )

    def _read_cpu_percent(self) -> float:
        with self._lock:
            now_s = time.monotonic()
            passed_s = now_s - self._since_s
            if passed_s >= _SHORTEST_CPU_WINDOW_S:
                used_s = self._cpu_time_s()
                percent = 100 * (used_s - self._used_s) / passed_s / self._cores
                self._cpu_percent = min(100.0, max(0.0, percent))
                self._since_s, self._used_s = now_s, used_s
            return self._cpu_percent

    def _cpu_time_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
