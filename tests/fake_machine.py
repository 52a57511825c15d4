"""A machine made of files: fake /proc and /sys trees for any CPU, container or NUMA layout."""

from pathlib import Path

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"


class FakeMachine:
    """Writes what a kernel would show; `proc` and `sys` are the roots to read from."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.sys = folder / "sys"
        (self.proc / "self").mkdir(parents=True)
        self.sys.mkdir()

    def write(self, path: str, text: str) -> None:
        """Write one file, given as "/proc/..." or "/sys/..."."""
        root, inner = path.lstrip("/").split("/", 1)
        target = getattr(self, root) / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def cpus(self, siblings: list[str], flags: str = "fpu avx avx2 fma f16c") -> None:
        """Give the machine one hardware thread per entry; equal entries share a core."""
        blocks = [
            f"processor\t: {i}\nmodel name\t: Fake CPU @ 2.00GHz\nflags\t\t: {flags}\n"
            for i in range(len(siblings))
        ]
        self.write("/proc/cpuinfo", "\n".join(blocks))
        self.write("/sys/devices/system/cpu/online", f"0-{len(siblings) - 1}\n")
        for i, shared in enumerate(siblings):
            topology = f"/sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list"
            self.write(topology, f"{shared}\n")

    def memory(self, gib: int) -> None:
        """Give the machine this much memory."""
        self.write("/proc/meminfo", f"MemTotal:       {gib * 2**20} kB\nMemFree:  1 kB\n")

    def in_group(self, lines: str, mounts: str = V2_MOUNT) -> None:
        """Put this process into control groups, as /proc/self/cgroup and mountinfo tell."""
        self.write("/proc/self/cgroup", lines)
        self.write("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + mounts)
