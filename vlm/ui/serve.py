"""The command that serves the page: first the page, then the engine, then the model."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, NoReturn

import gradio as gr

from vlm.chat import ChatEngine, ModelState
from vlm.config import Settings, load_settings
from vlm.ending import CLOSE_S, die_of_signals, dying_of_interrupts, within
from vlm.errors import ConfigError
from vlm.server.routes import Server
from vlm.ui.api import Endpoints, forbid_downloads
from vlm.ui.late_engine import LateEngine
from vlm.ui.look import launch_options
from vlm.ui.page import Page
from vlm.units import format_bytes

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command; each overrides its key of the settings file."""
    add = parser.add_argument
    add("--config", metavar="NAME|FILE", help="settings: a name in configs/, or a TOML file")
    add("--model", help="auto, bundled, a name on the Hugging Face Hub, or a folder")
    add("--precision", help="auto, fp32, mixed or int8")
    add("--detail", type=_number_or_name, help="fast, balanced, fine, or visual tokens per picture")
    add("--host", help="address to listen on; 0.0.0.0 lets other machines in")
    add("--port", type=int, help="TCP port of the page")
    add("--api-key", metavar="KEY", help="key that programs must send (or VLM_API_KEY)")
    add(
        "--remote-pictures",
        action="store_true",
        default=None,
        help="let API clients name pictures by public web addresses",
    )
    add("--mcp", action="store_true", help="also offer the page's endpoints as tools over MCP")
    add("--share", action="store_true", help="also make a public link through gradio.live")
    add("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; returns the exit code. Raises ConfigError."""
    settings = read_settings(args)
    _check_port(settings.server.host, settings.server.port)
    engine = LateEngine(lambda: _make_engine(settings), settings.server.queue_size)
    with dying_of_interrupts():
        page, options = build_server(engine, settings, args.mcp)
        if args.share:
            engine.start()  # making the link may take its time
        _, url, public_url = page.launch(
            server_name=settings.server.host,
            server_port=settings.server.port,
            share=args.share,
            inbrowser=args.open,
            quiet=True,
            prevent_thread_lock=True,
            **options,
        )
    signal.signal(signal.SIGTERM, _end)
    try:
        _say(f"The page is at {url} (Ctrl-C ends it)")
        if args.share:
            _say_public(public_url)
        else:
            engine.start()
        _report(engine)
    except KeyboardInterrupt:
        die_of_signals()
        _say("\nEnding.")
    finally:
        # An open page or a model in the middle of its loading would take longer.
        within(CLOSE_S, lambda: page.close(verbose=False), engine.close)
    return 0


def build_server(
    engine: ChatEngine, settings: Settings, mcp: bool = False
) -> tuple[gr.Blocks, dict[str, Any]]:
    """Make the page with the API beside it; returns it with the arguments of its launch()."""
    server = Server(engine, settings)
    page = Page(server.metrics.watch("page"), settings).build()
    Endpoints(server.answering("gradio")).add_to(page)
    forbid_downloads()
    options = launch_options(settings)
    options["app_kwargs"]["routes"] = server.routes()
    if mcp:
        _check_mcp()
    options["mcp_server"] = mcp
    return page, options


def read_settings(args: argparse.Namespace) -> Settings:
    """Read the settings file with the flags over it. Raises ConfigError."""
    port, host, sources = args.port, args.host, {}
    if port is None and os.environ.get("GRADIO_SERVER_PORT", "").isdigit():
        port = int(os.environ["GRADIO_SERVER_PORT"])
        sources["server.port"] = "GRADIO_SERVER_PORT"
    if not host:
        host = os.environ.get("GRADIO_SERVER_NAME") or None
        sources["server.host"] = "GRADIO_SERVER_NAME"
    overrides = {
        "model.model": args.model,
        "model.precision": args.precision,
        "picture.image_detail": args.detail,
        "server.host": host,
        "server.port": port,
        "server.api_key": args.api_key or os.environ.get("VLM_API_KEY") or None,
        "server.remote_pictures": args.remote_pictures,
    }
    return load_settings(args.config, overrides, sources)


def _check_mcp() -> None:
    """Raise ConfigError when Gradio could not speak MCP; it would only say so in its log."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--mcp needs the package mcp. Install what requirements.txt names, or leave --mcp out."
        ) from error


def _make_engine(settings: Settings) -> ChatEngine:
    # Here and not above: this imports torch, which takes longer than the page may.
    from vlm.engine import Engine

    return Engine(settings)


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _check_port(host: str, port: int) -> None:
    """Raise ConfigError when the page cannot be served there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the server does it: a port that was closed a moment ago may be taken again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"The page cannot be served on {host}, port {port}: {error.strerror}. "
                f"End what uses the port, or choose another one with --port {port + 1}."
            ) from error


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say_public(url: str | None) -> None:
    if url:
        _say(f"Anyone with this link can use this machine: {url}")
    else:
        _say("No public link could be made (is gradio.live reachable?). The local page works.")


def _report(engine: ChatEngine) -> None:
    """Say in the terminal how the model comes along; waits until Ctrl-C."""
    said = ""
    while True:
        line = describe_state(engine.state())
        if line != said:
            _say(line)
            said = line
        is_moving = engine.state().stage in ("finding", "downloading", "loading")
        time.sleep(_REPORT_EVERY_S if is_moving else 60.0)


def describe_state(state: ModelState) -> str:
    """Say where the model is in one line for the terminal."""
    parts = [state.message or state.stage.capitalize()]
    if state.total_bytes and state.stage in ("downloading", "loading"):
        done, total = format_bytes(state.done_bytes), format_bytes(state.total_bytes)
        parts.append(f"{done} of {total}")
    if state.eta_s is not None:
        parts.append(f"about {time.strftime('%H:%M:%S', time.gmtime(state.eta_s))} left")
    if state.stage == "ready":
        parts.append(f"{state.model} in {state.precision}: {state.precision_reason}")
        parts += [state.notice] if state.notice else []
    return " · ".join(parts)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
