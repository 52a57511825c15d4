"""Keeps the model and its threads on one memory node of a machine that has several.

Each token reads all weights: from another node's memory they come at about half the speed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import psutil

from vlm.hardware import Hardware, NumaNode, read_hardware

logger = logging.getLogger(__name__)

MOST_OF_A_NODE = 0.8
"""Share of a node's memory that the model may take; caches and the system need the rest."""


def choose_node(
    nodes: tuple[NumaNode, ...], cpus: frozenset[int], need_bytes: int
) -> NumaNode | None:
    """Return the node with most of the usable CPUs if they lie on several and the model fits it."""
    usable = [node for node in nodes if cpus & set(node.cpus)]
    if len(usable) < 2:
        return None
    best = max(usable, key=lambda node: len(cpus & set(node.cpus)))
    return best if need_bytes <= MOST_OF_A_NODE * best.memory_bytes else None


def stay_on_one_node(machine: Hardware, need_bytes: int) -> int:
    """Keep this thread, and those it starts from now on, on one node if that is better.

    need_bytes: what the weights may take. Returns how many threads to compute with.
    """
    process = psutil.Process()
    if not hasattr(os, "sched_setaffinity"):
        return machine.usable_cores
    cpus = frozenset(process.cpu_affinity())
    node = choose_node(machine.numa_nodes, cpus, need_bytes)
    if node is None:
        return machine.usable_cores
    near = cpus & set(node.cpus)
    try:
        os.sched_setaffinity(0, near)
    except OSError as error:  # a container may forbid it
        logger.info("not kept on memory node %d: %s", node.index, error)
        return machine.usable_cores
    logger.info("kept on memory node %d of %d", node.index, len(machine.numa_nodes))
    return read_hardware(affinity=near).usable_cores


def weight_files_bytes(folder: Path) -> int:
    """Return the size of a checkpoint's weights on disk."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
