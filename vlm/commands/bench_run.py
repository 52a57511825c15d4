"""Run the jobs of a benchmark, each in a process of its own, one after the other."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlm.commands.bench_row import BenchJob, BenchRow
from vlm.commands.bench_table import BenchResult
from vlm.errors import ConfigError
from vlm.hardware import this_machine
from vlm.memory_plan import KIND_BYTES
from vlm.packing import weight_units
from vlm.skeleton import build_skeleton

REPOSITORY = Path(__file__).resolve().parents[2]
LANGUAGE_BYTES = {
    "fp32": KIND_BYTES["fp32"],
    "mixed": KIND_BYTES["fp16"],
    "int8": KIND_BYTES["int8"],
}
"""Bytes of one weight of the language part, by precision."""


def measure(engines: Sequence[BenchJob]) -> BenchResult:
    """Measure the limits of this machine, then every engine. Raises VLMError."""
    rates = run_worker(dataclasses.replace(engines[0], engine="limits"))
    if "error" in rates:
        raise ConfigError(str(rates["error"]))
    units = weight_units(build_skeleton(Path(engines[0].folder)))
    matrices = sum(unit.matrix_elements for unit in units if unit.part == "language")
    rows = [measure_engine(job) for job in engines]
    for row in rows:
        if row.decode_tps is not None and row.precision in LANGUAGE_BYTES:
            token_bytes = matrices * LANGUAGE_BYTES[row.precision]
            row.decode_limit_ratio = row.decode_tps * token_bytes / (rates["bandwidth_gbps"] * 1e9)
    machine = dataclasses.asdict(this_machine())
    machine["threads"] = engines[0].threads or this_machine().usable_cores
    return BenchResult(machine, rates["bandwidth_gbps"], rates["matmul_gflops"], tuple(rows))


def measure_engine(job: BenchJob) -> BenchRow:
    """Measure one engine; a failure is a row that says why, and the others still run."""
    sys.stderr.write(f"Measuring {job.engine} in {job.precision} precision ...\n")
    result = run_worker(job)
    if "error" in result:
        return BenchRow(job.engine, job.precision, note=str(result["error"]))
    return BenchRow(**result)


def run_worker(job: BenchJob) -> dict[str, Any]:
    """Run a job in a process of its own and return what it printed last."""
    done = subprocess.run(
        [sys.executable, "-m", "vlm.commands.bench_worker"],
        input=json.dumps(dataclasses.asdict(job)),
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        reason = f"its process ended with code {done.returncode}"
        if done.returncode == -9:
            reason = "the system ended its process, most likely for want of memory"
        return {"error": f"Not measured: {reason}."}
    result: dict[str, Any] = json.loads(lines[-1])
    return result
