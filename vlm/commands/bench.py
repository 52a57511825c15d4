"""Measure this machine: time to the first token, tokens per second and peak memory.

--random-weights runs the real 2B geometry without any download. Every engine runs in a process
of its own, one after the other; times are the best of all rounds. --url asks the same of another
program that speaks the OpenAI protocol.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from vlm.commands.bench_plot import write_plot
from vlm.commands.bench_random import GEOMETRY_2B, write_random_checkpoint
from vlm.commands.bench_row import BenchJob
from vlm.commands.bench_run import LANGUAGE_BYTES, measure
from vlm.commands.bench_server import open_server
from vlm.commands.bench_table import BenchResult, render
from vlm.commands.bench_url import measure_url
from vlm.config import load_settings
from vlm.download import DownloadProgress
from vlm.errors import ConfigError, VLMError
from vlm.linear import available_kinds
from vlm.loading import verdict_file
from vlm.model_source import find_model
from vlm.units import format_bytes

EXIT_ERROR = 1
MOST_CHATS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add("--random-weights", action="store_true", help="the 2B geometry with random weights")
    add("--geometry", type=Path, default=GEOMETRY_2B, metavar="FILE",
        help="config.json of another geometry for --random-weights")  # fmt: skip
    add("--scratch", type=Path, metavar="DIR", help="where random weights are written and kept")
    add("--model", help="auto, bundled, a name on the Hugging Face Hub, or a folder; "
        "with --url: the server's name of it (default: the first it lists)")  # fmt: skip
    add("--precision", help="auto, fp32, mixed, int8 or all (with random weights: all)")
    add("--stock", action=argparse.BooleanOptionalAction, default=False,
        help="also transformers' generate in fp32")  # fmt: skip
    add("--picture", type=_size, default=(448, 448), metavar="WxH", help="size of the picture")
    add("--turns", type=int, default=1, help="follow-up questions after the first")
    add("--chats", type=int, metavar="N",
        help="conversations asked at the same time (4; with --url: 1)")  # fmt: skip
    add("--rounds", type=int, default=2, help="repetitions, of which the best counts")
    add("--new-tokens", type=int, default=32, help="tokens of every answer")
    add("--threads", type=int, default=0, help="threads that compute; 0: the usable cores")
    add("--url", metavar="URL", help="measure this OpenAI-compatible server: http://HOST/v1")
    add("--api-key-env", metavar="NAME", help="environment variable that holds its key")
    add("--json", action="store_true", help="print one JSON object")
    add("--plot", type=Path, metavar="FILE", help="also draw the figures into this PNG file")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns 0, or 1 with a sentence on stderr."""
    try:
        _check(args)
        with ExitStack() as stack:
            result, name = _measure_url(args) if args.url else _measure_here(args, stack)
        _print(args, result, name)
    except VLMError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_ERROR
    return EXIT_ERROR if all(row.ttft_s is None for row in result.rows) else 0


def _print(args: argparse.Namespace, result: BenchResult, name: str) -> None:
    """Show the result, the JSON object alone on stdout. Raises ConfigError."""
    if args.json:
        sys.stdout.write(f"{json.dumps(result.figures())}\n")
        sys.stderr.writelines(f"{note}\n" for note in result.notes())
    else:
        sys.stdout.writelines(f"{line}\n" for line in render(result, name))
    if args.plot:
        write_plot(result, name, args.plot)


def _measure_url(args: argparse.Namespace) -> tuple[BenchResult, str]:
    """Measure another program's server; the rates of this machine say nothing about it."""
    server = open_server(args.url, args.api_key_env, args.model)
    _say(f"Asking {server.model} at {server.url} ...")
    row = measure_url(server, _job(args, "server", "", Path()))
    machine: dict[str, object] = {"url": server.url, "model": server.model}
    return BenchResult(machine, None, None, (row,)), server.model


def _measure_here(args: argparse.Namespace, stack: ExitStack) -> tuple[BenchResult, str]:
    folder, name = _model(args, stack)
    stock = [_job(args, "stock", "fp32", folder)] if args.stock else []
    ours = [_job(args, "ours", precision, folder) for precision in _precisions(args)]
    return measure([*stock, *ours]), name


def _job(args: argparse.Namespace, engine: str, precision: str, folder: Path) -> BenchJob:
    width_px, height_px = args.picture
    return BenchJob(
        engine=engine,
        folder=str(folder.resolve()),
        precision=precision,
        width_px=width_px,
        height_px=height_px,
        new_tokens=args.new_tokens,
        turns=args.turns,
        rounds=args.rounds,
        threads=args.threads,
        chats=args.chats or (1 if args.url else 4),
        has_sense=not args.random_weights,
    )


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


def _precisions(args: argparse.Namespace) -> tuple[str, ...]:
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
    if args.url and (args.random_weights or args.stock or args.precision):
        raise ConfigError(
            "--url measures another program's server: leave out --random-weights, --stock and "
            "--precision."
        )
    if args.api_key_env and not args.url:
        raise ConfigError("--api-key-env belongs to --url; give both, or neither.")
    if args.chats is not None and not 1 <= args.chats <= MOST_CHATS:
        raise ConfigError(f"--chats {args.chats} must be from 1 to {MOST_CHATS}.")
    if args.plot and not args.plot.absolute().parent.is_dir():
        raise ConfigError(f"--plot {args.plot}: there is no folder {args.plot.parent}; make it.")
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
