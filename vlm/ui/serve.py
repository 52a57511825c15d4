"""The command that serves the page: first the page, then the engine, then the model."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
import webbrowser
from collections.abc import Mapping
from types import FrameType, MappingProxyType
from typing import Any, NoReturn

import gradio as gr
from starlette.middleware import Middleware

from vlm.chat import ChatEngine, ModelState
from vlm.choose_engine import add_engine_arguments, check_engine, engine_overrides, make_engine
from vlm.config import Settings, load_settings
from vlm.ending import CLOSE_S, die_of_signals, dying_of_interrupts, within
from vlm.errors import ConfigError
from vlm.server.routes import Server
from vlm.ui.api import Endpoints, forbid_downloads
from vlm.ui.late_engine import LateEngine
from vlm.ui.login import LoginNeeded, let_tools_in, read_logins
from vlm.ui.look import launch_options
from vlm.ui.page import Page
from vlm.ui.ports import find_port
from vlm.ui.proxies import spare_proxies, without_proxies
from vlm.ui.share import check_share, end_links, share
from vlm.units import format_bytes

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command; each overrides its key of the settings file."""
    add = parser.add_argument
    add("--config", metavar="NAME|FILE", help="settings: a name in configs/, or a TOML file")
    add_engine_arguments(parser)
    add("--precision", help="auto, fp32, mixed or int8")
    add("--detail", type=_number_or_name, help="fast, balanced, fine, or visual tokens per picture")
    add("--host", help="address to listen on; 0.0.0.0 lets other machines in")
    add("--port", type=int, help="TCP port of the page, this one only")
    add("--root-path", metavar="PATH|URL", help="where a proxy shows the page, such as /talk")
    add(
        "--auth",
        action="append",
        metavar="USER:PASSWORD",
        help="ask for this login everywhere (or VLM_AUTH); may be given several times",
    )
    add("--api-key", metavar="KEY", help="key that programs must send (or VLM_API_KEY)")
    add(
        "--remote-pictures",
        action="store_true",
        default=None,
        help="let API clients name pictures by public web addresses",
    )
    add("--mcp", action="store_true", help="also offer the page's endpoints as tools over MCP")
    add("--share", action="store_true", help="also make a public link through Gradio; needs --auth")
    add("--share-without-password", action="store_true", help="a public link for everybody")
    add("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; returns the exit code. Raises ConfigError."""
    logins = read_logins(args.auth)
    is_shared = args.share or args.share_without_password
    check_share(is_shared, args.share_without_password, logins)
    root_path = read_root_path(args.root_path)
    settings = read_settings(args)
    check_engine(settings)
    port = _choose_port(args, settings)
    spare_proxies(settings.server.host)
    engine = LateEngine(lambda: make_engine(settings), settings.server.queue_size)
    with dying_of_interrupts():
        page, options = build_server(engine, settings, args.mcp, logins)
        url = _launch(page, settings.server.host, port, options | {"root_path": root_path})
        let_tools_in(page, url, logins)
    signal.signal(signal.SIGTERM, _end)
    try:
        _say(f"The page is at {url} (Ctrl-C ends it)")
        if is_shared:
            share(settings.server.host, port, page.share_token, _say)
        if args.open:
            webbrowser.open(url)
        engine.start()
        _report(engine)
    except KeyboardInterrupt:
        die_of_signals()
        _say("\nEnding.")
    finally:
        # An open page or a model in the middle of its loading would take longer.
        within(CLOSE_S, lambda: page.close(verbose=False), engine.close, end_links)
    return 0


def build_server(
    engine: ChatEngine,
    settings: Settings,
    mcp: bool = False,
    logins: Mapping[str, str] = MappingProxyType({}),
) -> tuple[gr.Blocks, dict[str, Any]]:
    """Make the page with the API beside it; returns it with the arguments of its launch()."""
    server = Server(engine, settings)
    page = Page(server.metrics.watch("page"), settings).build()
    Endpoints(server.answering("gradio")).add_to(page)
    forbid_downloads()
    options = launch_options(settings)
    options["app_kwargs"]["routes"] = server.routes()
    if logins:
        options["auth"] = list(logins.items())
        has_key = bool(settings.server.api_key)
        guard = Middleware(LoginNeeded, logins=logins, has_key=has_key)
        options["app_kwargs"]["middleware"].insert(0, guard)
    if mcp:
        _check_mcp()
    options["mcp_server"] = mcp
    return page, options


def read_root_path(given: str | None) -> str:
    """Read where a proxy shows the page; empty: at its root. Raises ConfigError."""
    path = given if given is not None else os.environ.get("GRADIO_ROOT_PATH", "")
    if path and not path.startswith(("/", "http://", "https://")):
        raise ConfigError(
            f'The root path "{path}" must begin with / (such as /talk) or be a whole address '
            "(such as https://example.org/talk)."
        )
    return path.rstrip("/")


def _choose_port(args: argparse.Namespace, settings: Settings) -> int:
    """Take the port of the settings, or the next free one and say so. Raises ConfigError."""
    host, port = settings.server.host, settings.server.port
    is_fixed = args.port is not None or bool(os.environ.get("GRADIO_SERVER_PORT"))
    chosen = find_port(host, port, is_fixed)
    if chosen != port:
        _say(f"Port {port} is taken by another program; taking {chosen} instead.")
    return chosen


def _launch(page: gr.Blocks, host: str, port: int, options: dict[str, Any]) -> str:
    """Serve the page in the background; returns its address. Raises ConfigError."""
    with without_proxies():
        try:
            _, url, _ = page.launch(
                server_name=host,
                server_port=port,
                share=False,  # vlm/ui/share.py makes links, without holding up the page
                quiet=True,
                prevent_thread_lock=True,
                **options,
            )
        except OSError as error:
            raise ConfigError(
                f"The page could not be served on {host}, port {port}: another program took it "
                "just now, or this machine is too busy. Start again."
            ) from error
    return str(url)


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
        **engine_overrides(args),
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


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


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
        place = f"in {state.precision}: {state.precision_reason}"
        parts.append(f"{state.model} {f'at {state.server}' if state.server else place}")
        parts += [state.notice] if state.notice else []
    return " · ".join(parts)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
