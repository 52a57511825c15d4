"""Ask one question about many pictures: `python demo.py batch FOLDER -q "..." --out FILE`.

Each picture becomes one line of JSON as soon as it is answered. The same command goes on where
an earlier run ended.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vlm.chat import ChatEngine
from vlm.choose_engine import make_engine
from vlm.commands.asking import (
    EXIT_ERROR,
    EXIT_STOPPED,
    add_question_arguments,
    make_request,
    open_file,
    read_settings,
    wait_for_model,
)
from vlm.commands.batch_files import find_files, identity
from vlm.commands.batch_results import ResultsFile
from vlm.commands.batch_work import ANSWERED, FAILED, SKIPPED, UNREADABLE, Batch, Work
from vlm.commands.status_line import StatusLine
from vlm.config import Settings
from vlm.ending import CLOSE_S, within
from vlm.errors import ModelError, VLMError

_LOOK_EVERY_S = 0.2
_STOPPING_S = 5.0
"""How long answers may take to notice that they are to end."""
_WORDS = {ANSWERED: "answered", SKIPPED: "skipped", UNREADABLE: "unreadable", FAILED: "failed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add(
        "pictures",
        nargs="+",
        metavar="FOLDER|GLOB|IMAGE",
        help='folders, patterns such as "photos/**/*.jpg", or picture files',
    )
    add("--out", required=True, metavar="FILE", help="where the rows go (JSON Lines)")
    add(
        "--skip-blank",
        action="store_true",
        help="leave out pictures that are blank, of one colour, over- or underexposed",
    )
    add("--retry-errors", action="store_true", help="try files again that could not be read")
    add_question_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask about all pictures that have no row yet; returns the exit code.

    0: all are answered, or skipped on request; 1 with a sentence on stderr: some could not be
    read, now or in an earlier run, or failed, or it could not be done at all; 130 after Ctrl-C.
    """
    engine: ChatEngine | None = None
    status = StatusLine(sys.stderr)
    try:
        settings = read_settings(args)
        files = find_files(args.pictures)
        with ResultsFile(Path(args.out)) as results:
            if results.notice:
                status.note(results.notice)
            engine = make_engine(settings)
            wait_for_model(engine, status)
            return _run(args, settings, engine, results, files, status)
    except VLMError as error:
        status.clear()
        sys.stderr.write(f"{error}\n")
        return EXIT_ERROR
    except KeyboardInterrupt:
        status.clear()
        sys.stderr.write(f"Stopped. What was answered is in {args.out}.\n")
        return EXIT_STOPPED
    finally:
        if engine is not None:
            within(CLOSE_S, engine.close)


def _run(
    args: argparse.Namespace,
    settings: Settings,
    engine: ChatEngine,
    results: ResultsFile,
    files: Sequence[str],
    status: StatusLine,
) -> int:
    state = engine.state()
    if state.stage != "ready":
        raise ModelError(state.message)
    asked = {"question": args.question, "model": state.model}
    asked |= {"system": args.system} if args.system else {}
    done = {identity(row["file"]): row for row in results.rows if _is_done(row, asked, args)}
    unreadable = sum("error" in done.get(identity(path), {}) for path in files)
    waiting = [path for path in files if identity(path) not in done]
    work = Work(
        engine,
        partial(open_file, settings=settings),
        lambda name, picture: make_request(name, args.question, args.system, settings, (picture,)),
        results.add,
        asked,
        args.skip_blank,
    )
    batch = Batch(work, waiting)
    if done and waiting:
        status.note(f"{len(files) - len(waiting)} of {len(files)} pictures have their row already.")
    was_interrupted = _follow(batch, settings.server.answers_at_once, status)
    if batch.failure is not None:
        raise batch.failure
    unreadable += batch.counts[UNREADABLE]
    said = _summary(batch, len(files), unreadable, args.out, was_interrupted)
    sys.stderr.write(said + "\n")
    if was_interrupted:
        return EXIT_STOPPED
    return EXIT_ERROR if unreadable or batch.counts[FAILED] else 0


def _is_done(row: Mapping[str, Any], asked: Mapping[str, str], args: argparse.Namespace) -> bool:
    """Say whether a row is what this run would write again."""
    if any(row.get(key, "") != asked.get(key, "") for key in ("question", "model", "system")):
        return False
    if row.get("ask_again") or ("error" in row and args.retry_errors):
        return False
    return "skipped" not in row or bool(args.skip_blank)


def _follow(batch: Batch, at_once: int, status: StatusLine) -> bool:
    """Show how the batch comes along; returns whether Ctrl-C ended it. A second one leaves."""
    began_s = time.monotonic()
    was_interrupted = False
    batch.start(at_once)
    try:
        while not batch.wait(_LOOK_EVERY_S):
            status.show_done(describe(batch, time.monotonic() - began_s, status.is_terminal))
    except KeyboardInterrupt:
        was_interrupted = True
        batch.stop()
        end_s = time.monotonic() + _STOPPING_S
        while not batch.wait(_LOOK_EVERY_S) and time.monotonic() < end_s:
            pass
    status.clear()
    return was_interrupted


def describe(batch: Batch, elapsed_s: float, is_terminal: bool) -> str:
    """Say how far a batch is: a bar that fits the terminal, or every tenth part for a log."""
    done, total = batch.done, len(batch.files)
    if not is_terminal:
        tenths = 10 * done // total
        return f"{tenths * 10}% of {total} pictures"
    width = max(10, min(30, shutil.get_terminal_size().columns - 70))
    filled = width * done // total
    parts = [f"[{'#' * filled}{'-' * (width - filled)}] {done} of {total}"]
    parts += [
        f"{batch.counts[key]} {_WORDS[key]}"
        for key in (SKIPPED, UNREADABLE, FAILED)
        if batch.counts[key]
    ]
    if 0 < done < total:
        left_s = elapsed_s / done * (total - done)
        hours, minutes = divmod(int(left_s) // 60, 60)
        parts.append(f"about {hours}:{minutes:02}:{int(left_s) % 60:02} left")
    return " · ".join(parts)


def _summary(batch: Batch, total: int, unreadable: int, out: str, was_interrupted: bool) -> str:
    """Say what the file has and what is left; `unreadable` counts earlier runs too."""
    counted = ", ".join(
        f"{batch.counts[key]} {words}" for key, words in _WORDS.items() if batch.counts[key]
    )
    rows = f"{out} has {total - len(batch.files) + batch.done} of {total} pictures"
    now = f" ({counted} in this run)" if counted else ""
    if was_interrupted:
        return f"Stopped. {rows}{now}; the same command goes on from there."
    again = " The same command tries those that failed again." if batch.counts[FAILED] else ""
    if unreadable:
        again += f" Unreadable: {unreadable}; --retry-errors tries them again."
    if not batch.files:
        return f"Nothing to do: {out} has all {total} pictures already.{again}"
    return f"{rows}{now}.{again}"
