"""Share what `ask` and `batch` have in common: flags, settings, pictures, waiting, results."""

from __future__ import annotations

import argparse
import time
from typing import Any

from vlm.chat import AnswerStats, AskRequest, ChatEngine, Message, Sampling
from vlm.choose_engine import add_engine_arguments, engine_overrides
from vlm.commands.status_line import StatusLine
from vlm.config import Settings, load_settings
from vlm.images import Picture, PictureLimits, open_picture

EXIT_ERROR = 1
EXIT_STOPPED = 130
"""What shells report for a command ended by Ctrl-C."""
_LOOK_EVERY_S = 0.1
"""How often it is seen whether the model is there."""


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the question and the flags that say how it is answered."""
    add = parser.add_argument
    add("-q", "--question", required=True, help="what to ask")
    add("--system", default="", help="an instruction the model follows in its answer")
    add_engine_arguments(parser)
    add("--precision", help="auto, fp32, mixed or int8")
    add("--config", metavar="NAME|FILE", help="settings: a name in configs/, or a TOML file")
    add("--detail", type=number_or_name, help="fast, balanced, fine, or visual tokens per picture")
    add("--max-new-tokens", type=int, help="longest answer, in tokens")
    add("--temperature", type=float, help="0 gives the same answer every time")
    add("--seed", type=int, help="repeat a sampled answer")


def number_or_name(text: str) -> int | str:
    """Read a flag that takes a whole number or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def read_settings(args: argparse.Namespace) -> Settings:
    """Read the settings file with the flags of add_question_arguments over it.

    Raises: ConfigError.
    """
    overrides = {
        **engine_overrides(args),
        "model.precision": args.precision,
        "picture.image_detail": args.detail,
        "generation.max_new_tokens": args.max_new_tokens,
        "generation.temperature": args.temperature,
        "generation.seed": args.seed,
    }
    return load_settings(args.config, overrides)


def open_file(path: str, settings: Settings) -> Picture:
    """Open a picture file within the limits of the settings. Raises PictureError."""
    limits = PictureLimits(max_px=int(settings.picture.max_megapixels * 1_000_000))
    return open_picture(path, limits=limits)


def make_request(
    conversation_id: str,
    question: str,
    system: str,
    settings: Settings,
    pictures: tuple[Picture, ...],
) -> AskRequest:
    """Make a chat of one question, sampled as the settings say."""
    chosen = settings.generation
    sampling = Sampling(
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        top_k=chosen.top_k,
        presence_penalty=chosen.presence_penalty,
        max_new_tokens=chosen.max_new_tokens,
        seed=chosen.fixed_seed,
    )
    before = (Message("system", system),) if system else ()
    messages = (*before, Message("user", question, pictures))
    return AskRequest(conversation_id, messages, sampling, settings.picture.max_visual_tokens)


def wait_for_model(engine: ChatEngine, status: StatusLine) -> None:
    """Show how the model comes along until it is ready; why it failed is told when asked."""
    try:
        while (state := engine.state()).stage in ("finding", "downloading", "loading"):
            status.show_model(state)
            time.sleep(_LOOK_EVERY_S)
    finally:
        status.clear()
    if state.notice:
        status.note(state.notice)


def result_of(engine: ChatEngine, text: str, stats: AnswerStats) -> dict[str, Any]:
    """Put an answer and what it cost into the form that is written as JSON."""
    memory, state = engine.memory(), engine.state()
    return {
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
