"""Measure one engine in a process of its own, so that its peak memory is its own.

Run by the bench command: a job as JSON on stdin, the result as JSON on the last line of stdout.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable

import torch

from vlm.commands.bench_ours import measure_ours
from vlm.commands.bench_row import BenchJob, PeakAnon
from vlm.commands.bench_stock import measure_stock
from vlm.errors import VLMError
from vlm.hardware import this_machine
from vlm.loading import use_threads
from vlm.memory import free_memory, peak_rss_bytes

BANDWIDTH_BYTES = 2**30
MATMUL_SIDE = 2048


def main() -> int:
    """Measure and print; a VLMError becomes {"error": sentence}."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    job = BenchJob(**json.loads(sys.stdin.read()))
    try:
        result = measure(job)
    except VLMError as error:
        result = {"error": str(error)}
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    return 0


def measure(job: BenchJob) -> dict[str, object]:
    """Run a job in this process and return its figures by name."""
    if job.engine == "limits":
        torch.set_num_threads(this_machine().usable_cores)  # whatever the engines are given
        return {
            "bandwidth_gbps": bandwidth_gbps(BANDWIDTH_BYTES),
            "matmul_gflops": matmul_gflops(MATMUL_SIDE),
        }
    use_threads(job.threads)
    with PeakAnon() as anon:
        row = measure_stock(job) if job.engine == "stock" else measure_ours(job)
    row.peak_rss_bytes = peak_rss_bytes()
    row.peak_anon_bytes = anon.peak_bytes
    return dataclasses.asdict(row)


@torch.inference_mode()
def bandwidth_gbps(size_bytes: int, rounds: int = 5) -> float:
    """Return the best rate of reading a large buffer with the threads set, in GB/s."""
    size_bytes = min(size_bytes, free_memory().available_bytes // 2)
    buffer = torch.ones(size_bytes // 4)
    return buffer.nbytes / 1e9 / _best_s(rounds, buffer.sum)


@torch.inference_mode()
def matmul_gflops(side: int, rounds: int = 3) -> float:
    """Return the best rate of an fp32 matrix product with the threads set, in GFLOP/s."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    return 2 * side**3 / 1e9 / _best_s(rounds, lambda: a @ b)


def _best_s(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
