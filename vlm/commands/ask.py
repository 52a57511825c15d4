"""Answer one question about pictures on the terminal: `python demo.py ask IMAGE... -q "..."`.

The answer streams to stdout (or is one JSON object), everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys

from vlm.chat import AnswerStats, AskRequest, ChatEngine, ModelState
from vlm.choose_engine import make_engine
from vlm.commands.asking import (
    EXIT_ERROR,
    EXIT_STOPPED,
    add_question_arguments,
    make_request,
    open_file,
    read_settings,
    result_of,
    wait_for_model,
)
from vlm.commands.status_line import StatusLine
from vlm.config import Settings
from vlm.ending import CLOSE_S, within
from vlm.errors import PictureError, VLMError
from vlm.images import Picture
from vlm.request_checks import check_pictures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add("pictures", nargs="*", metavar="IMAGE", help="picture files, in the order you name them")
    add("--json", action="store_true", help="print one JSON object with the answer and its cost")
    add_question_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask, print and return the exit code: 0, 1 with a sentence on stderr, 130 after Ctrl-C."""
    engine: ChatEngine | None = None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every character
    try:
        settings = read_settings(args)
        check_pictures([len(args.pictures)], settings.picture.max_pictures)
        pictures = tuple(_open(path, settings) for path in args.pictures)
        engine = make_engine(settings)
        status = StatusLine(sys.stderr)
        # Asked before the model is there, the question would wait, and its times with it.
        wait_for_model(engine, status)
        request = make_request("ask", args.question, args.system, settings, pictures)
        return _ask(engine, request, status, as_json=args.json)
    except VLMError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_ERROR
    except BrokenPipeError:
        # The reader of the answer (head, less) left. What Python still wants to flush at exit
        # must go nowhere, or it complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_STOPPED
    finally:
        if engine is not None:
            within(CLOSE_S, engine.close)


def _open(path: str, settings: Settings) -> Picture:
    """Open one picture file; an error names it, as several may be given. Raises PictureError."""
    if not os.path.isfile(path):  # unlike Path.is_file(), it bears a name too long for a disk
        raise PictureError(f"There is no file {path}. Check its name and try again.")
    try:
        return open_file(path, settings)
    except PictureError as error:
        raise PictureError(f"{path}: {error}") from error


def _ask(engine: ChatEngine, request: AskRequest, status: StatusLine, as_json: bool) -> int:
    """Stream one answer. The first Ctrl-C stops it and keeps what came; a second one leaves."""
    answer = engine.ask(request)
    texts: list[str] = []
    stats: AnswerStats | None = None
    was_interrupted = False
    pieces = iter(answer)
    while stats is None:
        try:
            piece = next(pieces)
        except KeyboardInterrupt:
            if was_interrupted:
                raise
            was_interrupted = True
            answer.stop()
            pieces = iter(answer)  # the interrupt ended the first iterator, not the answer
            continue
        status.show(piece)
        if piece.text and not as_json:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        texts.append(piece.text)
        stats = piece.stats
    status.clear()
    _finish(engine, "".join(texts), stats, as_json)
    return EXIT_STOPPED if was_interrupted else 0


def _finish(engine: ChatEngine, text: str, stats: AnswerStats, as_json: bool) -> None:
    if as_json:
        result = result_of(engine, text, stats)
        sys.stdout.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
        return
    sys.stdout.write("\n")
    sys.stderr.write(_cost(stats, engine.state()) + "\n")


def _cost(stats: AnswerStats, state: ModelState) -> str:
    """Say what an answer cost; a server may not have counted its tokens."""
    words = "1 new token" if stats.new_tokens == 1 else f"{stats.new_tokens} new tokens"
    if stats.new_tokens > 1 and stats.decode_tps:  # one token has no rate
        words += f" at {stats.decode_tps:.1f} per second"
    prompt = f"{stats.prompt_tokens} prompt tokens ({stats.visual_tokens} visual)"
    first, where = f"first word after {stats.ttft_s:.2f} s", f"in {state.precision}"
    if state.server:
        prompt = f"{stats.prompt_tokens} prompt tokens" if stats.prompt_tokens else ""
        words, where = words if stats.new_tokens else "", f"at {state.server}"
    parts = [prompt, first, words, f"{state.model} {where}"]
    return f"[{stats.finish_reason}] {', '.join(filter(None, parts))}"
