"""What this machine is: CPU, instruction sets, usable cores, NUMA nodes, memory limit.

Usable cores are what a container, an affinity mask and hyper-threading leave: one thread
each is fastest, and more than that makes every matrix product wait for its slowest part.
/proc and /sys can be replaced by folders, so that any machine can be imitated in a test.
"""

from __future__ import annotations

import math
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from vlm.cgroup import Cgroups

# Only those that decide which kernels run well, weakest first.
_X86_SETS = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
_ARM_SETS = ("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme")
_KNOWN_SETS = _X86_SETS + _ARM_SETS
# What macOS and Windows call some of them.
_MACOS_NAMES = {
    "avx1.0": "avx", "sse4.2": "sse4_2", "advsimd": "asimd", "feat_fp16": "asimdhp",
    "feat_dotprod": "asimddp", "feat_bf16": "bf16", "feat_i8mm": "i8mm", "feat_sme": "sme",
}  # fmt: skip
_WINDOWS_FEATURES = {38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f", 43: "asimddp"}


@dataclass(frozen=True)
class NumaNode:
    """One memory node: the CPUs near it, and its memory in bytes."""

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True)
class Hardware:
    """What this process may use of this machine."""

    system: str
    architecture: str
    cpu_name: str
    instruction_sets: tuple[str, ...]
    logical_cores: int
    """Hardware threads of the whole machine."""
    affinity_cores: int
    """Hardware threads this process may run on."""
    physical_cores: int
    """Cores behind affinity_cores: hyper-threads of one core count once."""
    quota_cores: float | None
    """CPUs' worth of time the container allows; None without a limit."""
    usable_cores: int
    """Threads to compute with: the least of the three above, rounded down, at least 1."""
    numa_nodes: tuple[NumaNode, ...]
    memory_bytes: int
    memory_limit_bytes: int | None
    """The container's limit when it is below the machine's memory; else None."""

    def has(self, instruction_set: str) -> bool:
        """Tell whether the CPU has an instruction set, named as Linux names it."""
        return instruction_set in self.instruction_sets


@cache
def this_machine() -> Hardware:
    """Describe the machine this process runs on; read once."""
    return read_hardware()


def read_hardware(
    proc: Path = Path("/proc"), sys: Path = Path("/sys"), affinity: frozenset[int] | None = None
) -> Hardware:
    """Describe a machine from its /proc and /sys; what they lack is asked of the system."""
    groups = Cgroups(proc, sys)
    cpuinfo = _read(proc / "cpuinfo")
    logical = psutil.cpu_count() or 1
    cpus = affinity if affinity is not None else _affinity(logical)
    physical = _physical_cores(sys, cpuinfo, cpus)
    quota = groups.cpu_quota()
    limits = [len(cpus), physical] + ([math.floor(quota)] if quota is not None else [])
    memory_bytes = _machine_memory_bytes(proc)
    limit_bytes = groups.memory_limit_bytes()
    return Hardware(
        system=platform.system(),
        architecture=platform.machine(),
        cpu_name=_cpu_name(cpuinfo),
        instruction_sets=_instruction_sets(cpuinfo),
        logical_cores=_online_cpus(sys) or logical,
        affinity_cores=len(cpus),
        physical_cores=physical,
        quota_cores=quota,
        usable_cores=max(1, min(limits)),
        numa_nodes=_numa_nodes(sys),
        memory_bytes=memory_bytes,
        memory_limit_bytes=limit_bytes if limit_bytes and limit_bytes < memory_bytes else None,
    )


def _affinity(logical: int) -> frozenset[int]:
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return frozenset(process.cpu_affinity())
    return frozenset(range(logical))  # macOS keeps no mask


def _physical_cores(sys: Path, cpuinfo: str, cpus: frozenset[int]) -> int:
    """Count the cores behind these hardware threads."""
    folder = sys / "devices" / "system" / "cpu"
    siblings = [_read(folder / f"cpu{i}" / "topology" / "thread_siblings_list") for i in cpus]
    if all(siblings) and siblings:
        return len(set(siblings))
    cores = set()
    for block in cpuinfo.split("\n\n"):
        fields = _fields(block)
        if "core id" in fields and int(fields.get("processor", "-1")) in cpus:
            cores.add((fields.get("physical id"), fields["core id"]))
    if cores:
        return len(cores)
    # Without a topology to read (macOS, Windows) the system's own count is for all CPUs.
    return min(len(cpus), psutil.cpu_count(logical=False) or len(cpus))


def _online_cpus(sys: Path) -> int:
    return len(_cpu_list(_read(sys / "devices" / "system" / "cpu" / "online")))


def _numa_nodes(sys: Path) -> tuple[NumaNode, ...]:
    """Read the nodes that have CPUs; none where the system does not tell."""
    nodes = []
    for folder in (sys / "devices" / "system" / "node").glob("node[0-9]*"):
        cpus = _cpu_list(_read(folder / "cpulist"))
        total = re.search(r"MemTotal:\s+(\d+) kB", _read(folder / "meminfo"))
        if cpus:
            memory_bytes = int(total[1]) * 1024 if total else 0
            nodes.append(NumaNode(int(folder.name.removeprefix("node")), cpus, memory_bytes))
    return tuple(sorted(nodes, key=lambda node: node.index))


def _cpu_list(text: str) -> tuple[int, ...]:
    """Read "0-3,8" as (0, 1, 2, 3, 8)."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def _machine_memory_bytes(proc: Path) -> int:
    total = re.search(r"^MemTotal:\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    return int(total[1]) * 1024 if total else int(psutil.virtual_memory().total)


def _cpu_name(cpuinfo: str) -> str:
    fields = _fields(cpuinfo)
    name = fields.get("model name") or fields.get("Hardware") or fields.get("Model")
    if not name and platform.system() == "Darwin":
        name = _sysctl("machdep.cpu.brand_string").partition(":")[2].strip()
    return name or platform.processor() or platform.machine() or "unknown CPU"


def _instruction_sets(cpuinfo: str) -> tuple[str, ...]:
    fields = _fields(cpuinfo)
    found = set((fields.get("flags") or fields.get("Features") or "").lower().split())
    if not found and platform.system() == "Darwin":
        found = macos_instruction_sets(_sysctl("machdep.cpu", "hw.optional"))
    if not found and platform.system() == "Windows":
        found = _windows_instruction_sets()
    return tuple(name for name in _KNOWN_SETS if name in found)


def macos_instruction_sets(report: str) -> set[str]:
    """Read instruction sets from what `sysctl machdep.cpu hw.optional` prints."""
    found: set[str] = set()
    for line in report.splitlines():
        key, _, value = line.lower().partition(":")
        if key.endswith("features"):
            found.update(value.split())
        elif value.strip() == "1":
            found.add(key.rpartition("optional.")[2].removeprefix("arm."))
    return found | {_MACOS_NAMES[name] for name in found if name in _MACOS_NAMES}


def _sysctl(*names: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", *names], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _windows_instruction_sets() -> set[str]:
    import ctypes

    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    present = kernel.IsProcessorFeaturePresent
    found = {name for number, name in _WINDOWS_FEATURES.items() if present(number)}
    # Windows has no number for these two; every CPU with AVX2 that it runs on has them.
    return found | ({"fma", "f16c"} if "avx2" in found else set())


def _fields(block: str) -> dict[str, str]:
    """Read "name : value" lines; the first of a name counts."""
    fields: dict[str, str] = {}
    for line in block.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
