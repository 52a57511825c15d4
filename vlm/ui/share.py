"""Make a public link through Gradio's share server beside the page, and say why there is none.

The page itself waits for nothing here.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit, urlunsplit

from gradio import networking
from gradio.exceptions import ChecksumMismatchError, ShareCertificateWriteError
from gradio.tunneling import BINARY_PATH, CURRENT_TUNNELS

from vlm.errors import ConfigError

logger = logging.getLogger(__name__)


def check_share(is_shared: bool, is_open: bool, logins: Mapping[str, str]) -> None:
    """Raise ConfigError for a public link without a login that nobody asked for by name."""
    if is_shared and not is_open and not logins:
        raise ConfigError(
            "With --share anyone who has the link can use this machine. Add a login with "
            "--auth USER:PASSWORD, or say --share-without-password if that is meant."
        )


def share(host: str, port: int, token: str, say: Callable[[str], None]) -> None:
    """Make the link in the background; `say` gets one line with it, or with the reason why not."""
    work = threading.Thread(
        target=lambda: say(describe_link(host, port, token)), name="share", daemon=True
    )
    work.start()


def describe_link(host: str, port: int, token: str) -> str:
    """Make a public link to a port of this machine and tell it in a line; never raises.

    Takes up to a minute. token: what names this server to the share server.
    """
    local_host = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    try:
        url = networking.setup_tunnel(local_host, port, token, None, None)
    except Exception as error:
        logger.debug("no public link", exc_info=True)
        return (
            f"There is no public link: {_reason(error)}. The local page works. To let others in "
            f"without the link, have them run ssh -L {port}:{local_host}:{port} "
            f"USER@{socket.gethostname()} and open http://127.0.0.1:{port}, or use --host 0.0.0.0 "
            "in a network you trust."
        )
    public = urlunsplit(urlsplit(url)._replace(scheme="https"))
    return f"Anyone with this link can reach this page: {public}"


def end_links() -> None:
    """End the programs that hold links open; the system would let them outlive this one."""
    for tunnel in CURRENT_TUNNELS:
        if tunnel.proc is not None:
            with contextlib.suppress(OSError):
                tunnel.proc.terminate()


def _reason(error: Exception) -> str:
    if isinstance(error, ChecksumMismatchError):
        return f"Gradio's tunnel program is damaged; delete {BINARY_PATH} and start again"
    if isinstance(error, ShareCertificateWriteError):
        return "the current folder cannot be written, and a certificate must be kept in it"
    if isinstance(error, RuntimeError):
        return "Gradio's share server (api.gradio.app) cannot be reached"
    if isinstance(error, PermissionError):
        return f"Gradio's tunnel program {BINARY_PATH} may not be started; see your virus scanner"
    if isinstance(error, ValueError):
        return "Gradio's share server did not let the tunnel in"
    return "Gradio's tunnel program (frpc) could not be fetched; something blocks its download"
