"""Find where the page can listen."""

from __future__ import annotations

import errno
import os
import socket

from vlm.errors import ConfigError

_TRIED = 100
"""Ports looked at after a taken one."""


def find_port(host: str, port: int, is_fixed: bool) -> int:
    """Return the port, or the next free one when it is taken and was not asked for.

    Raises: ConfigError that names a free port, or says what is wrong with the host.
    """
    error = _why_not(host, port)
    if error is None:
        return port
    free = _next_free(host, port) if _is_about_port(error) else None
    if error.errno == errno.EADDRINUSE and not is_fixed and free is not None:
        return free
    fact = f"The page cannot be served on {host}, port {port}: {error.strerror}."
    if free is not None:
        raise ConfigError(f"{fact} Port {free} is free: --port {free}.") from error
    if _is_about_port(error):
        raise ConfigError(f"{fact} Choose another one with --port.") from error
    raise ConfigError(
        f"{fact} --host takes an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them."
    ) from error


def _is_about_port(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _next_free(host: str, port: int) -> int | None:
    first = max(port + 1, 1024)  # ports below need rights
    ports = range(first, min(first + _TRIED, 65536))
    return next((other for other in ports if _why_not(host, other) is None), None)


def _why_not(host: str, port: int) -> OSError | None:
    """Try to listen there for a moment; returns what is in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        if os.name == "posix":
            # As the server does it: a port that was closed a moment ago may be taken again.
            # (Elsewhere the option lets two programs share a port.)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None
