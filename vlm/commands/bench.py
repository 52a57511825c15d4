"""Measure this machine: time to the first token, tokens per second and peak memory.

--random-weights runs the real 2B geometry without any download. Every engine runs in a process
of its own, one after the other; times are the best of all rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlm.commands.bench_random import GEOMETRY_2B, write_random_checkpoint
from vlm.commands.bench_row import BenchJob, BenchRow
from vlm.commands.bench_table import BenchResult, render
from vlm.config import load_settings
from vlm.download import DownloadProgress
from vlm.errors import ConfigError, VLMError
from vlm.hardware import this_machine
from vlm.linear import available_kinds
from vlm.loading import verdict_file
from vlm.memory_plan import KIND_BYTES
from vlm.model_source import find_model
from vlm.packing import weight_units
from vlm.skeleton import build_skeleton
from vlm.units import format_bytes

EXIT_ERROR = 1
REPOSITORY = Path(__file__).resolve().parents[2]
LANGUAGE_BYTES = {"fp32": KIND_BYTES["fp32"], "mixed": KIND_BYTES["fp16"]} | {
    "int8": KIND_BYTES["int8"]
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add("--random-weights", action="store_true", help="the 2B geometry with random weights")
    add("--geometry", type=Path, default=GEOMETRY_2B, metavar="FILE",
        help="config.json of another geometry for --random-weights")  # fmt: skip
    add("--scratch", type=Path, metavar="DIR", help="where random weights are written and kept")
    add("--model", help="auto, bundled, a name on the Hugging Face Hub, or a folder")
    add("--precision", help="auto, fp32, mixed, int8 or all (with random weights: all)")
    add("--stock", action=argparse.BooleanOptionalAction,
        help="also transformers' generate in fp32 (default with random weights)")  # fmt: skip
    add("--picture", type=_size, default=(448, 448), metavar="WxH", help="size of the picture")
    add("--turns", type=int, default=1, help="follow-up questions after the first")
    add("--rounds", type=int, default=2, help="repetitions, of which the best counts")
    add("--new-tokens", type=int, default=32, help="tokens of every answer")
    add("--threads", type=int, default=0, help="threads that compute; 0: the usable cores")
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns 0, or 1 with a sentence on stderr."""
    try:
        _check(args)
        with ExitStack() as stack:
            folder, name = _model(args, stack)
            result = measure(args, folder)
    except VLMError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_ERROR
    text = json.dumps(dataclasses.asdict(result)) if args.json else "\n".join(render(result, name))
    sys.stdout.write(f"{text}\n")
    return EXIT_ERROR if all(row.ttft_s is None for row in result.rows) else 0


def measure(args: argparse.Namespace, folder: Path) -> BenchResult:
    """Measure the limits of the machine, then every engine. Raises VLMError."""
    limits, *engines = _jobs(args, folder.resolve())
    rates = _run_worker(limits)
    if "error" in rates:
        raise ConfigError(str(rates["error"]))
    units = weight_units(build_skeleton(folder))
    matrices = sum(unit.matrix_elements for unit in units if unit.part == "language")
    rows = []
    for job in engines:
        row = _row(job)
        if row.decode_tps is not None and row.precision in LANGUAGE_BYTES:
            token_bytes = matrices * LANGUAGE_BYTES[row.precision]
            row.decode_limit_ratio = row.decode_tps * token_bytes / (rates["bandwidth_gbps"] * 1e9)
        rows.append(row)
    machine = dataclasses.asdict(this_machine())
    machine["threads"] = args.threads or this_machine().usable_cores
    return BenchResult(machine, rates["bandwidth_gbps"], rates["matmul_gflops"], tuple(rows))


def _jobs(args: argparse.Namespace, folder: Path) -> list[BenchJob]:
    """Return the jobs of one run: the machine's limits, stock if wanted, ours."""
    width_px, height_px = args.picture
    limits = BenchJob(
        engine="limits",
        folder=str(folder),
        precision="fp32",
        width_px=width_px,
        height_px=height_px,
        new_tokens=args.new_tokens,
        turns=args.turns,
        rounds=args.rounds,
        threads=args.threads,
    )
    has_stock = args.random_weights if args.stock is None else args.stock
    stock = [dataclasses.replace(limits, engine="stock")] if has_stock else []
    ours = [
        dataclasses.replace(limits, engine="ours", precision=precision)
        for precision in _precisions(args)
    ]
    return [limits, *stock, *ours]


def _row(job: BenchJob) -> BenchRow:
    """Measure one engine; a failure is a row that says why, and the others still run."""
    _say(f"Measuring {job.engine} in {job.precision} precision ...")
    result = _run_worker(job)
    if "error" in result:
        return BenchRow(job.engine, job.precision, note=str(result["error"]))
    return BenchRow(**result)


def _run_worker(job: BenchJob) -> dict[str, Any]:
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


def _model(args: argparse.Namespace, stack: ExitStack) -> tuple[Path, str]:
    """Return the folder to measure, and what to call it."""
    if not args.random_weights:
        settings = load_settings(None, {"model.model": args.model})
        found = find_model(
            settings.model.model,
            _say_download,
            cache_folder=Path(settings.model.cache_folder) if settings.model.cache_folder else None,
            download=settings.model.download,
        )
        return found.path, found.name
    scratch = args.scratch
    if scratch is None:
        # Beside other caches, not in /tmp, which may be memory.
        cache = verdict_file()
        scratch = (cache.parent if cache else Path.cwd()) / "random-weights"
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    _say(f"Writing random weights to {scratch} ...")
    write_random_checkpoint(scratch, args.geometry, _say_written)
    name = "Qwen3-VL-2B" if args.geometry == GEOMETRY_2B else str(args.geometry)
    return scratch, f"{name}, random weights"


def _precisions(args: argparse.Namespace) -> Sequence[str]:
    wanted = args.precision or ("all" if args.random_weights else "auto")
    if wanted != "all":
        return (wanted,)
    return ("fp32", "mixed", "int8") if "int8" in available_kinds() else ("fp32", "mixed")


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that cannot be measured. Raises ConfigError."""
    if args.precision not in (None, "auto", "all", *LANGUAGE_BYTES):
        raise ConfigError(
            f"--precision {args.precision} is unknown; give auto, fp32, mixed, int8 or all."
        )
    if args.random_weights and args.model:
        raise ConfigError("--random-weights and --model exclude each other; give one of them.")
    if args.new_tokens < 2 or args.rounds < 1 or args.turns < 0 or args.threads < 0:
        raise ConfigError(
            "--new-tokens must be at least 2, --rounds at least 1, --turns and --threads at "
            "least 0."
        )


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isdigit() and height.isdigit() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 448x448")
    return int(width), int(height)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _say_written(done_bytes: int, total_bytes: int) -> None:
    _say(f"  {format_bytes(done_bytes)} of {format_bytes(total_bytes)}")


def _say_download(progress: DownloadProgress) -> None:
    if progress.total_bytes:
        done, total = format_bytes(progress.done_bytes), format_bytes(progress.total_bytes)
        end = "\n" if progress.done_bytes == progress.total_bytes else ""
        sys.stderr.write(f"\r{progress.message}: {done} of {total}  {end}")
