"""Memory and CPU readings: under limits, of this process, without waiting."""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fake_machine import FakeMachine

from vlm.cgroup import Cgroups
from vlm.memory import ProcessProbe, free_memory, peak_rss_bytes, rss_bytes
from vlm.units import GIB, MIB


def in_container(folder: Path, limit_bytes: int, used_bytes: int) -> Cgroups:
    machine = FakeMachine(folder)
    machine.in_group("0::/\n")
    machine.write("/sys/fs/cgroup/memory.max", f"{limit_bytes}\n")
    machine.write("/sys/fs/cgroup/memory.current", f"{used_bytes}\n")
    return Cgroups(machine.proc, machine.sys)


def test_a_container_shows_its_own_limit(tmp_path: Path) -> None:
    free = free_memory(in_container(tmp_path, 300 * MIB, 100 * MIB))
    assert free.total_bytes == 300 * MIB
    assert free.available_bytes == 200 * MIB
    assert free.is_container_limit


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    free = free_memory(in_container(tmp_path, total + GIB, 0))
    assert free.total_bytes == total
    assert not free.is_container_limit


def test_a_wide_container_on_a_full_machine_shows_what_the_machine_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        total, available = 64 * GIB, GIB

    monkeypatch.setattr(psutil, "virtual_memory", Full)
    free = free_memory(in_container(tmp_path, 32 * GIB, 2 * GIB))
    assert (free.available_bytes, free.total_bytes) == (GIB, 32 * GIB)


def test_resident_bytes_grow_with_what_is_held() -> None:
    before = rss_bytes()
    # Pages of its own: a bytearray may land in memory that earlier tests have freed.
    held = mmap.mmap(-1, 64 * MIB)
    held.write(os.urandom(1) * (64 * MIB))
    assert rss_bytes() - before > 48 * MIB
    assert peak_rss_bytes() >= before + 48 * MIB
    held.close()


def test_the_peak_is_the_kernels_high_water_mark(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    assert peak_rss_bytes(status) == 2 * MIB


def test_without_a_mark_the_systems_own_peak_is_used(tmp_path: Path) -> None:
    assert peak_rss_bytes(tmp_path / "none") >= rss_bytes() // 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a peak over exec")
def test_the_peak_of_the_starting_program_is_not_ours() -> None:
    code = (
        "import os, sys; held = b'x' * (256 * 2**20); del held;"
        "os.execv(sys.executable, [sys.executable, '-c',"
        " 'from vlm.memory import peak_rss_bytes; print(peak_rss_bytes())'])"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert int(done.stdout) < 128 * MIB


def test_cpu_use_is_of_the_usable_cores_together() -> None:
    alone, of_four = ProcessProbe(cores=1), ProcessProbe(cores=4)
    used_s, until_s = time.process_time(), time.monotonic() + 0.4
    while time.monotonic() < until_s:
        sum(range(1000))
    used_s = time.process_time() - used_s
    share = 100 * used_s / 0.4  # a busy neighbour may leave us less than a whole core
    assert alone.read().cpu_percent == pytest.approx(min(100, share), abs=15)
    assert of_four.read().cpu_percent == pytest.approx(min(100, share / 4), abs=15)


def test_readings_in_quick_succession_keep_the_last_cpu_use() -> None:
    probe = ProcessProbe(cores=1)
    assert probe.read().cpu_percent == 0.0  # no time has passed yet
    time.sleep(0.3)
    first = probe.read().cpu_percent
    assert probe.read().cpu_percent == first


def test_a_reading_is_whole_and_takes_no_time() -> None:
    probe = ProcessProbe()
    taken_s = []
    for _ in range(5):  # the best of five, as a busy machine may slow down any one
        start_s = time.perf_counter()
        reading = probe.read()
        taken_s.append(time.perf_counter() - start_s)
    assert min(taken_s) < 0.02
    assert 0 < reading.rss_bytes <= reading.peak_rss_bytes
    assert 0 < reading.free.available_bytes <= reading.free.total_bytes
    assert 0 <= reading.cpu_percent <= 100
    assert reading.cores >= 1
