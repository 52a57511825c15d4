"""Make the engine that the settings ask for: the model in this process, or a server's."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from vlm.chat import ChatEngine
from vlm.config import Settings
from vlm.errors import ConfigError


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which model answers, and where it runs."""
    add = parser.add_argument
    add(
        "--model",
        help="auto, bundled, a name on the Hugging Face Hub, or a folder; "
        "with --engine openai one of the server's models",
    )
    add(
        "--engine",
        metavar="local|openai",
        help="where the model runs: here, or on a server that speaks OpenAI's API",
    )
    add("--base-url", metavar="URL", help="that server, such as http://HOST:8000/v1")
    add(
        "--api-key-env",
        metavar="NAME",
        help="environment variable that holds the server's key",
    )


def engine_overrides(args: argparse.Namespace) -> Mapping[str, object]:
    """Return what the flags of add_engine_arguments set, for load_settings()."""
    return {
        "model.model": args.model,
        "engine.kind": args.engine,
        "engine.base_url": args.base_url,
        "engine.api_key_env": args.api_key_env,
    }


def check_engine(settings: Settings) -> None:
    """Raise ConfigError for an engine that could not be made, before anything is imported."""
    chosen = settings.engine
    if chosen.kind == "openai":
        from vlm.remote.address import read_address

        read_address(chosen)
    elif chosen.base_url or chosen.api_key_env:
        raise ConfigError(
            "--base-url and --api-key-env are for a model on a server. Add --engine openai."
        )


def make_engine(settings: Settings) -> ChatEngine:
    """Make the engine; its model comes along by itself. Raises ConfigError."""
    check_engine(settings)
    # Each imports what only it needs: torch takes seconds.
    if settings.engine.kind == "openai":
        from vlm.remote.engine import RemoteEngine

        return RemoteEngine(settings)
    from vlm.engine import Engine

    return Engine(settings)
