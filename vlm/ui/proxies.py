"""Keep the proxies of the environment away from what this process asks of itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_LOCAL = ("localhost", "127.0.0.1", "::1")


def spare_proxies(host: str) -> None:
    """Have this process reach its own addresses without the proxies of its environment."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return  # else the proxies of the system's settings would no longer be looked up
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in listed.split(",") if name.strip()]
    names += [name for name in (*_LOCAL, host) if name not in names]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(names)


@contextlib.contextmanager
def without_proxies() -> Iterator[None]:
    """Take all proxies out of the environment while Gradio is imported or asks its own address.

    Its client fails over a proxy it has no support for (SOCKS) even when it needs none.
    """
    kept = {name: os.environ[name] for name in os.environ if name.lower().endswith("_proxy")}
    try:
        for name in kept:
            del os.environ[name]
        yield
    finally:
        os.environ.update(kept)
