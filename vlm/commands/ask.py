"""Answer one question about pictures on the terminal: `python demo.py ask IMAGE... -q "..."`.

The answer streams to stdout (or is one JSON object), everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from pathlib import Path

from vlm.chat import AnswerStats, AskRequest, ChatEngine, Message, Sampling
from vlm.commands.status_line import StatusLine
from vlm.config import Settings, load_settings
from vlm.ending import CLOSE_S, within
from vlm.engine import Engine
from vlm.errors import PictureError, VLMError
from vlm.images import Picture, PictureLimits, open_picture

EXIT_ERROR = 1
EXIT_STOPPED = 130
"""What shells report for a command ended by Ctrl-C."""
_LOOK_EVERY_S = 0.1
"""How often it is seen whether the model is there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    add = parser.add_argument
    add("pictures", nargs="*", metavar="IMAGE", help="picture files, in the order you name them")
    add("-q", "--question", required=True, help="what to ask")
    add("--json", action="store_true", help="print one JSON object with the answer and its cost")
    add("--system", default="", help="an instruction the model follows in its answer")
    add("--model", help="auto, bundled, a name on the Hugging Face Hub, or a folder")
    add("--precision", help="auto, fp32, mixed or int8")
    add("--config", metavar="NAME|FILE", help="settings: a name in configs/, or a TOML file")
    add("--detail", type=_number_or_name, help="fast, balanced, fine, or visual tokens per picture")
    add("--max-new-tokens", type=int, help="longest answer, in tokens")
    add("--temperature", type=float, help="0 gives the same answer every time")
    add("--seed", type=int, help="repeat a sampled answer")


def run(args: argparse.Namespace) -> int:
    """Ask, print and return the exit code: 0, 1 with a sentence on stderr, 130 after Ctrl-C."""
    engine: Engine | None = None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every character
    try:
        settings = _settings(args)
        limits = PictureLimits(max_px=int(settings.picture.max_megapixels * 1_000_000))
        pictures = tuple(_open(path, limits) for path in args.pictures)
        engine = Engine(settings)
        status = StatusLine(sys.stderr)
        # Asked before the model is there, the question would wait, and its times with it.
        _wait_for_model(engine, status)
        return _ask(engine, _request(args, settings, pictures), status, as_json=args.json)
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


def _open(path: str, limits: PictureLimits) -> Picture:
    """Open one picture file; an error names it, as several may be given. Raises PictureError."""
    if not Path(path).is_file():
        raise PictureError(f"There is no file {path}. Check its name and try again.")
    try:
        return open_picture(path, limits=limits)
    except PictureError as error:
        raise PictureError(f"{path}: {error}") from error


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _settings(args: argparse.Namespace) -> Settings:
    overrides = {
        "model.model": args.model,
        "model.precision": args.precision,
        "picture.image_detail": args.detail,
        "generation.max_new_tokens": args.max_new_tokens,
        "generation.temperature": args.temperature,
        "generation.seed": args.seed,
    }
    return load_settings(args.config, overrides)


def _request(
    args: argparse.Namespace, settings: Settings, pictures: tuple[Picture, ...]
) -> AskRequest:
    chosen = settings.generation
    sampling = Sampling(
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        top_k=chosen.top_k,
        presence_penalty=chosen.presence_penalty,
        max_new_tokens=chosen.max_new_tokens,
        seed=chosen.fixed_seed,
    )
    system = (Message("system", args.system),) if args.system else ()
    question = Message("user", args.question, pictures)
    return AskRequest("ask", (*system, question), sampling, settings.picture.max_visual_tokens)


def _wait_for_model(engine: ChatEngine, status: StatusLine) -> None:
    """Show how the model comes along until it is ready; why it failed is told when asked."""
    try:
        while (state := engine.state()).stage in ("finding", "downloading", "loading"):
            status.show_model(state)
            time.sleep(_LOOK_EVERY_S)
    finally:
        status.clear()
    if state.notice:
        status.note(state.notice)


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
    memory, state = engine.memory(), engine.state()
    if as_json:
        result = {
            "answer": text,
            "finish_reason": stats.finish_reason,
            "prompt_tokens": stats.prompt_tokens,
            "visual_tokens": stats.visual_tokens,
            "cached_tokens": stats.cached_tokens,
            "ttft_s": stats.ttft_s,
            "prefill_tps": stats.prefill_tps,
            "decode_tps": stats.decode_tps,
            "peak_rss_bytes": memory.peak_rss_bytes,
            "model": state.model,
            "precision": state.precision,
        }
        sys.stdout.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
        return
    sys.stdout.write("\n")
    words = "1 new token" if stats.new_tokens == 1 else f"{stats.new_tokens} new tokens"
    if stats.new_tokens > 1 and stats.decode_tps:  # one token has no rate
        words += f" at {stats.decode_tps:.1f} per second"
    sys.stderr.write(
        f"[{stats.finish_reason}] {stats.prompt_tokens} prompt tokens "
        f"({stats.visual_tokens} visual), first word after {stats.ttft_s:.2f} s, "
        f"{words}, {state.model} in {state.precision}\n"
    )
