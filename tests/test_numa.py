"""The model stays on one memory node where there are several and it fits."""

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from vlm.hardware import NumaNode, this_machine
from vlm.numa import choose_node, stay_on_one_node, weight_files_bytes

GIB = 2**30
TWO = (NumaNode(0, (0, 1, 2, 3), 16 * GIB), NumaNode(1, (4, 5, 6, 7), 16 * GIB))


@pytest.mark.parametrize(
    ("cpus", "need_bytes", "chosen"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, 9 * GIB, 0),
        ({3, 4, 5, 6}, 9 * GIB, 1),
        ({3, 4, 5, 6}, 15 * GIB, None),
        ({4, 5}, 9 * GIB, None),
    ],
    ids=["both", "most of the second", "does not fit", "already on one"],
)
def test_a_node_is_chosen_by_its_cpus_and_memory(cpus, need_bytes, chosen):
    node = choose_node(TWO, frozenset(cpus), need_bytes)
    assert (node and node.index) == chosen


def test_one_node_is_left_alone():
    assert choose_node(TWO[:1], frozenset({0, 1}), GIB) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_threads_started_later_stay_with_the_node(monkeypatch):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one CPU cannot be split")
    first, *rest = sorted(before)
    nodes = (NumaNode(0, (first,), 4 * GIB), NumaNode(1, tuple(rest), 16 * GIB))
    machine = replace(this_machine(), numa_nodes=nodes)
    try:
        threads = stay_on_one_node(machine, GIB)
        chosen = frozenset(os.sched_getaffinity(0))
        assert chosen == ({first} if len(rest) == 1 else set(rest))
        assert 1 <= threads <= len(chosen)
    finally:
        os.sched_setaffinity(0, before)


def test_where_it_is_forbidden_all_cores_compute(monkeypatch):
    def refuse(pid, cpus):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(8)), raising=False)
    machine = replace(this_machine(), numa_nodes=TWO, usable_cores=8)
    assert stay_on_one_node(machine, GIB) == 8


def test_what_the_weights_take_is_read_from_the_disk(tmp_path: Path):
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"x" * 5)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 99)
    assert weight_files_bytes(tmp_path) == 15
