"""Read where the remote server is and which key it gets; neither is ever shown whole."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import httpx2

from vlm.config import EngineSettings
from vlm.errors import ConfigError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Address:
    """A server that speaks OpenAI's API."""

    url: str
    """Base address, such as http://127.0.0.1:8000/v1, without a slash at its end."""
    host: str
    """What people are shown of it: "127.0.0.1:8000"."""
    key: str = field(default="", repr=False)
    """Sent to the server and shown nowhere; empty: none is sent."""
    key_variable: str = ""
    """Name of the environment variable that holds the key."""

    @property
    def is_this_machine(self) -> bool:
        """Whether the server is reached without leaving this machine."""
        name = urlsplit(self.url).hostname or ""
        return name in ("localhost", "::1") or name.startswith("127.")

    def redact(self, text: str) -> str:
        """Take the key out of a text; some servers repeat it in their errors."""
        return text.replace(self.key, "***") if self.key else text


def read_address(engine: EngineSettings) -> Address:
    """Read address and key of the settings. Raises ConfigError, which repeats neither."""
    if not engine.base_url:
        raise ConfigError(
            "The engine openai needs the address of a server. "
            "Give it with --base-url, such as --base-url http://HOST:8000/v1."
        )
    try:
        parts = urlsplit(engine.base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0 and not re.search(r"\s", engine.base_url)
        httpx2.URL(engine.base_url)
    except (ValueError, httpx2.InvalidURL):
        is_address = False
    if not is_address:
        raise ConfigError(
            "--base-url is no address of a server. Give one like http://HOST:8000/v1."
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "--base-url must hold no name, password, query or fragment. "
            "Put the key into an environment variable and name that with --api-key-env."
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return Address(
        url=urlunsplit((parts.scheme, parts.netloc, path, "", "")),
        host=parts.netloc,
        key=_read_key(engine.api_key_env),
        key_variable=engine.api_key_env,
    )


def _read_key(variable: str) -> str:
    if not variable:
        return ""
    if not _VARIABLE.fullmatch(variable):  # perhaps the key itself: not repeated
        raise ConfigError(
            "--api-key-env takes the name of an environment variable, such as OPENAI_API_KEY, "
            "and never the key itself."
        )
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"The environment variable {variable} (--api-key-env) holds no key. "
            "Set it to the server's key in the shell that starts this."
        )
    return key
