"""What a machine is: cores that may be used, instruction sets, NUMA nodes, memory limit."""

import os
import time
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from vlm.hardware import Hardware, macos_instruction_sets, read_hardware, this_machine
from vlm.units import GIB

EIGHT_THREADS = ["0,4", "1,5", "2,6", "3,7"] * 2
"""Four cores with two hardware threads each."""


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    machine = FakeMachine(tmp_path)
    machine.cpus(EIGHT_THREADS)
    machine.memory(16)
    return machine


def read(machine: FakeMachine, cpus: range | tuple[int, ...] = range(8)) -> Hardware:
    return read_hardware(machine.proc, machine.sys, frozenset(cpus))


def test_hyper_threads_of_one_core_count_once(machine: FakeMachine) -> None:
    hardware = read(machine)
    assert (hardware.logical_cores, hardware.affinity_cores, hardware.physical_cores) == (8, 8, 4)
    assert hardware.usable_cores == 4


def test_affinity_counts(machine: FakeMachine) -> None:
    assert read(machine, (0, 1)).usable_cores == 2
    assert read(machine, (0, 4)).usable_cores == 1  # two threads of one core


@pytest.mark.parametrize(
    ("cpu_max", "cores"), [("200000 100000", 2), ("290000 100000", 2), ("50000 100000", 1)]
)
def test_a_quota_counts_rounded_down_but_never_to_none(
    machine: FakeMachine, cpu_max: str, cores: int
) -> None:
    machine.in_group("0::/\n")
    machine.write("/sys/fs/cgroup/cpu.max", cpu_max)
    assert read(machine).usable_cores == cores


def test_a_quota_above_the_cores_gives_no_more_cores(machine: FakeMachine) -> None:
    machine.in_group("0::/\n")
    machine.write("/sys/fs/cgroup/cpu.max", "3200000 100000")
    hardware = read(machine)
    assert (hardware.quota_cores, hardware.usable_cores) == (32.0, 4)


def test_cores_are_counted_from_cpuinfo_where_sys_shows_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    blocks = [
        f"processor : {i}\nphysical id : {i % 2}\ncore id : {i % 4 // 2}\nmodel name : Old CPU\n"
        for i in range(8)
    ]
    machine.write("/proc/cpuinfo", "\n".join(blocks))
    assert read(machine).physical_cores == 4
    assert read(machine, (0, 4)).physical_cores == 1


def test_only_sets_that_decide_a_kernel_are_named_weakest_first(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.cpus(["0"], flags="amx_bf16 fpu avx2 avx512_bf16 lahf_lm avx512f")
    hardware = read(machine, (0,))
    assert hardware.instruction_sets == ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    assert hardware.has("avx2")
    assert not hardware.has("avx")
    assert hardware.cpu_name == "Fake CPU @ 2.00GHz"


def test_arm_names_its_sets_features(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("/proc/cpuinfo", "processor : 0\nFeatures : fp asimd aes asimddp sve i8mm bf16\n")
    assert read(machine, (0,)).instruction_sets == ("asimd", "asimddp", "bf16", "i8mm", "sve")


def test_macos_names_are_translated() -> None:
    apple = "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\nhw.optional.AdvSIMD: 1\n"
    assert {"bf16", "asimd"} <= macos_instruction_sets(apple)
    assert "sme" not in macos_instruction_sets(apple)
    intel = "machdep.cpu.features: FPU SSE4.2 AVX1.0 FMA\nmachdep.cpu.leaf7_features: AVX2 BMI1\n"
    assert {"sse4_2", "avx", "fma", "avx2"} <= macos_instruction_sets(intel)


def test_numa_nodes_come_in_order_and_without_those_that_have_no_cpu(machine: FakeMachine) -> None:
    for index, cpus in ((10, "8-9"), (1, "4-7"), (0, "0-2,3"), (2, "")):
        folder = f"/sys/devices/system/node/node{index}"
        machine.write(f"{folder}/cpulist", cpus + "\n")
        machine.write(f"{folder}/meminfo", f"Node {index} MemTotal:   {8 * 2**20} kB\n")
    nodes = read(machine).numa_nodes
    assert [node.index for node in nodes] == [0, 1, 10]
    assert nodes[0].cpus == (0, 1, 2, 3)
    assert nodes[0].memory_bytes == 8 * GIB


def test_a_containers_memory_limit_counts_only_below_the_machines(machine: FakeMachine) -> None:
    machine.in_group("0::/\n")
    assert read(machine).memory_limit_bytes is None
    machine.write("/sys/fs/cgroup/memory.max", f"{6 * GIB}\n")
    assert read(machine).memory_limit_bytes == 6 * GIB
    machine.write("/sys/fs/cgroup/memory.max", f"{64 * GIB}\n")
    assert read(machine).memory_limit_bytes is None
    assert read(machine).memory_bytes == 16 * GIB


def test_a_machine_that_shows_nothing_still_has_a_core_and_memory(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    hardware = read_hardware(machine.proc, machine.sys)
    assert hardware.usable_cores >= 1
    assert hardware.memory_bytes > 0
    assert hardware.cpu_name
    assert hardware.numa_nodes == ()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_the_real_affinity_is_read() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert read_hardware().usable_cores == 1
    finally:
        os.sched_setaffinity(0, before)


def test_this_machine_is_read_once_and_quickly() -> None:
    start_s = time.perf_counter()
    this_machine()
    assert time.perf_counter() - start_s < 1
    assert this_machine() is this_machine()
