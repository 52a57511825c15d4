"""The limits of this process's control groups (containers): CPU quota and memory, v1 and v2.

Each group up to the mount point may set a limit, and the smallest holds, so all are read.
/proc and /sys can be replaced by folders, so that any container can be imitated in a test.
Not covered: groups above the container's own mount point, which cannot be seen from inside.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 writes "no limit" as the largest page-aligned number of 63 bits.
_UNLIMITED_BYTES = 2**60
_RECLAIMABLE_V2 = ("active_file", "inactive_file", "slab_reclaimable")
_RECLAIMABLE_V1 = ("total_active_file", "total_inactive_file")


@dataclass(frozen=True)
class Cgroups:
    """Reads the limits of the control groups that this process is in."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time the groups allow, such as 2.0 or 0.5; None without a limit."""
        quotas = [_quota_v2(folder) for folder in self._folders("")]
        quotas += [_quota_v1(folder) for folder in self._folders("cpu")]
        return min((quota for quota in quotas if quota is not None), default=None)

    def memory_limit_bytes(self) -> int | None:
        """The smallest memory limit of the groups; None without a limit."""
        limits = [_memory_limit(folder) for folder in self._memory_folders()]
        return min((limit for limit in limits if limit is not None), default=None)

    def memory_available_bytes(self) -> int | None:
        """What the tightest group still gives: its limit less what it uses and cannot drop.

        File pages count as free, since the kernel drops them before it refuses memory.
        """
        left = [
            max(0, limit - _unreclaimable_bytes(folder))
            for folder in self._memory_folders()
            if (limit := _memory_limit(folder)) is not None
        ]
        return min(left, default=None)

    def _memory_folders(self) -> list[Path]:
        return self._folders("") + self._folders("memory")

    def _folders(self, controller: str) -> list[Path]:
        """Folders of this process's group for a v1 controller ("" is v2), leaf first."""
        group = self._group_of(controller)
        mount = self._mount_of(controller)
        if group is None or mount is None:
            return []
        mount_root, mount_folder = mount
        # Without a cgroup namespace the group is named from the host's root, which the mount
        # may hide; ".." means that the group lies outside of what is mounted.
        inner = mount_folder
        if group.is_relative_to(mount_root) and ".." not in group.parts:
            inner = mount_folder / group.relative_to(mount_root)
        folders = [inner]
        while folders[-1] != mount_folder:
            folders.append(folders[-1].parent)
        return [folder for folder in folders if folder.is_dir()]

    def _group_of(self, controller: str) -> PurePosixPath | None:
        for line in _read(self.proc / "self" / "cgroup").splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                return PurePosixPath(path)
        return None

    def _mount_of(self, controller: str) -> tuple[PurePosixPath, Path] | None:
        """The root that is mounted for a controller, and the folder it is mounted on."""
        for line in _read(self.proc / "self" / "mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            fields, (kind, _, options) = left.split(" "), right.split(" ", 2)
            is_v2 = kind == "cgroup2" and controller == ""
            is_v1 = kind == "cgroup" and controller and controller in options.split(",")
            if is_v2 or is_v1:
                return PurePosixPath(_unescape(fields[3])), self._under_sys(_unescape(fields[4]))
        return None

    def _under_sys(self, mounted: str) -> Path:
        path = PurePosixPath(mounted)
        return self.sys / path.relative_to("/sys") if path.is_relative_to("/sys") else Path(path)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_read(path).strip())
    except ValueError:
        return None  # "max", or no such file


def _quota_v2(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return _ratio(float(fields[0]), float(fields[1]))


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return None if quota is None or period is None else _ratio(quota, period)


def _ratio(quota: float, period: float) -> float | None:
    return quota / period if quota > 0 and period > 0 else None


def _memory_limit(folder: Path) -> int | None:
    # Above memory.high a group is not killed but slowed to a crawl: just as much a limit.
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    numbers = [_number(folder / name) for name in names]
    limits = [n for n in numbers if n is not None and math.isfinite(n) and n < _UNLIMITED_BYTES]
    return int(min(limits)) if limits else None


def _unreclaimable_bytes(folder: Path) -> int:
    """Bytes a group uses that the kernel cannot take back by dropping file pages."""
    usage = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    stat: dict[str, int] = {}
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        stat[name] = int(value) if value.isdigit() else 0
    # Only version 1 has the total_ names, which include the groups below.
    names = _RECLAIMABLE_V1 if "total_inactive_file" in stat else _RECLAIMABLE_V2
    return max(0, int(usage) - sum(stat.get(name, 0) for name in names))
