"""Control groups: v1 and v2, nested, with and without a namespace."""

from pathlib import Path

import pytest
from fake_machine import FakeMachine

from vlm.cgroup import Cgroups
from vlm.units import GIB, MIB

V1_MOUNTS = (
    "31 24 0:27 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 24 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)
V1_GROUPS = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def read(machine: FakeMachine) -> Cgroups:
    return Cgroups(machine.proc, machine.sys)


def test_without_groups_nothing_is_limited(machine: FakeMachine) -> None:
    groups = read(machine)
    assert groups.cpu_quota() is None
    assert groups.memory_limit_bytes() is None
    assert groups.memory_available_bytes() is None


@pytest.mark.parametrize(
    ("cpu_max", "quota"),
    [("200000 100000", 2.0), ("50000 100000", 0.5), ("max 100000", None), ("", None)],
)
def test_v2_cpu_quota(machine: FakeMachine, cpu_max: str, quota: float | None) -> None:
    machine.in_group("0::/\n")
    machine.write("/sys/fs/cgroup/cpu.max", cpu_max + "\n")
    assert read(machine).cpu_quota() == quota


def test_v2_the_tightest_group_on_the_way_up_counts(machine: FakeMachine) -> None:
    machine.in_group("0::/outer/middle/inner\n")
    machine.write("/sys/fs/cgroup/outer/cpu.max", "300000 100000\n")
    machine.write("/sys/fs/cgroup/outer/middle/cpu.max", "max 100000\n")
    machine.write("/sys/fs/cgroup/outer/middle/inner/cpu.max", "400000 100000\n")
    machine.write("/sys/fs/cgroup/outer/memory.max", f"{6 * GIB}\n")
    machine.write("/sys/fs/cgroup/outer/middle/memory.high", f"{5 * GIB}\n")
    machine.write("/sys/fs/cgroup/outer/middle/inner/memory.max", "max\n")
    assert read(machine).cpu_quota() == 3.0
    assert read(machine).memory_limit_bytes() == 5 * GIB


def test_a_group_beside_this_one_does_not_count(machine: FakeMachine) -> None:
    machine.in_group("0::/mine\n")
    machine.write("/sys/fs/cgroup/mine/cpu.max", "max 100000\n")
    machine.write("/sys/fs/cgroup/other/cpu.max", "100000 100000\n")
    assert read(machine).cpu_quota() is None


def test_v2_free_memory_counts_file_pages_as_free(machine: FakeMachine) -> None:
    machine.in_group("0::/app\n")
    machine.write("/sys/fs/cgroup/app/memory.max", f"{6 * GIB}\n")
    machine.write("/sys/fs/cgroup/app/memory.current", f"{5 * GIB}\n")
    stat = f"anon {2 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nshmem {GIB}\n"
    machine.write("/sys/fs/cgroup/app/memory.stat", stat)
    assert read(machine).memory_available_bytes() == 4 * GIB


def test_free_memory_is_that_of_the_fullest_group(machine: FakeMachine) -> None:
    machine.in_group("0::/pod/app\n")
    machine.write("/sys/fs/cgroup/pod/memory.max", f"{10 * GIB}\n")
    machine.write("/sys/fs/cgroup/pod/memory.current", f"{9 * GIB}\n")  # neighbours took it
    machine.write("/sys/fs/cgroup/pod/app/memory.max", f"{6 * GIB}\n")
    machine.write("/sys/fs/cgroup/pod/app/memory.current", f"{2 * GIB}\n")
    assert read(machine).memory_limit_bytes() == 6 * GIB
    assert read(machine).memory_available_bytes() == GIB


def test_a_group_over_its_limit_has_nothing_left(machine: FakeMachine) -> None:
    machine.in_group("0::/\n")
    machine.write("/sys/fs/cgroup/memory.max", f"{GIB}\n")
    machine.write("/sys/fs/cgroup/memory.current", f"{GIB + MIB}\n")
    assert read(machine).memory_available_bytes() == 0


def test_v1_in_docker_without_a_namespace(machine: FakeMachine) -> None:
    """The group is named from the host's root, of which the mount shows only this part."""
    machine.in_group(V1_GROUPS, V1_MOUNTS)
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", f"{4 * GIB}\n")
    machine.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", f"{3 * GIB}\n")
    machine.write(
        "/sys/fs/cgroup/memory/memory.stat",
        f"inactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file {512 * MIB}\n",
    )
    groups = read(machine)
    assert groups.cpu_quota() == 1.5
    assert groups.memory_limit_bytes() == 4 * GIB
    assert groups.memory_available_bytes() == 2 * GIB + 512 * MIB


def test_v1_nested_below_the_mount(machine: FakeMachine) -> None:
    mounts = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    machine.in_group("4:memory:/slurm/job/step\n0::/\n", mounts)
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", f"{8 * GIB}\n")
    machine.write("/sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine.write("/sys/fs/cgroup/memory/slurm/job/step/memory.limit_in_bytes", f"{3 * GIB}\n")
    assert read(machine).memory_limit_bytes() == 2 * GIB


def test_v1_no_limit_is_written_as_a_huge_number(machine: FakeMachine) -> None:
    machine.in_group(V1_GROUPS, V1_MOUNTS)
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert read(machine).memory_limit_bytes() is None
    assert read(machine).cpu_quota() is None


def test_a_group_outside_of_the_mount_reads_the_mount(machine: FakeMachine) -> None:
    """A process that entered the namespace later sees its group as "/../other"."""
    machine.in_group("0::/../other\n")
    machine.write("/sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert read(machine).cpu_quota() == 1.0


def test_a_mount_point_with_a_space_is_found(machine: FakeMachine) -> None:
    mounts = "30 24 0:26 / /sys/fs/c\\040group rw shared:9 - cgroup2 none rw\n"
    machine.in_group("0::/a:b\n", mounts)
    machine.write("/sys/fs/c group/a:b/cpu.max", "100000 100000\n")
    assert read(machine).cpu_quota() == 1.0
