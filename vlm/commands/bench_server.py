"""Ask an OpenAI-compatible server over HTTP; all that goes wrong there becomes a sentence."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from vlm.commands.bench_stream import StreamedAnswer
from vlm.errors import ConfigError, ModelError
from vlm.remote.stream import LONGEST_REASON, error_reason, read_events

SILENCE_S = 900.0
"""A server may read a picture for minutes before its first word."""
ERROR_BYTES = 65536
LIST_BYTES = 2**22

# What a server refuses by name is left out, or said in its other spelling.
_OTHER_WORDS: Mapping[str, str | None] = {
    "stream_options": None,
    "max_tokens": "max_completion_tokens",
    "temperature": None,
}


@dataclass
class ChatServer:
    """An OpenAI-compatible server; the key is sent to it and shown nowhere."""

    url: str
    """Base address, such as http://127.0.0.1:8080/v1, without a slash at its end."""
    model: str
    key: str = field(default="", repr=False)
    silence_s: float = SILENCE_S
    refused: set[str] = field(default_factory=set)
    """Fields of a request that this server does not know."""

    def models(self) -> list[str]:
        """Return the names the server lists. Raises ModelError."""
        with self._open("models", None) as response:
            try:
                listed = json.loads(response.read(LIST_BYTES)).get("data") or []
                return [str(entry["id"]) for entry in listed]
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            except (ValueError, TypeError, KeyError, AttributeError):
                raise ModelError(
                    f"{self.url}/models is no list of models. Give an address such as "
                    "http://HOST:PORT/v1, and the model's name with --model NAME."
                ) from None

    def ask(self, messages: Sequence[Mapping[str, object]], max_tokens: int) -> StreamedAnswer:
        """Stream one greedy answer to its end. Raises ModelError."""
        answer = StreamedAnswer(time.perf_counter())
        try:
            with self._open_answer(messages, max_tokens, answer) as response:
                for event in read_events(response):
                    answer.take(event, time.perf_counter())
        except (OSError, http.client.HTTPException) as error:
            if answer.first_at is None:
                raise self._unreachable(error) from error
            answer.note = "The server broke off an answer; what had come was counted."
        if answer.first_at is None:
            raise ModelError(
                f"{self.url} ended an answer without streaming any text. Check that {self.model} "
                "takes pictures and that the server can stream."
            )
        return answer

    def _open_answer(
        self, messages: Sequence[Mapping[str, object]], max_tokens: int, answer: StreamedAnswer
    ) -> http.client.HTTPResponse:
        """Ask, again when the server refuses an optional field by its name."""
        while True:
            body = {
                "model": self.model,
                "messages": list(messages),
                "stream": True,
                **self._options(max_tokens),
            }
            answer.asked_at = time.perf_counter()
            try:
                return self._open("chat/completions", body)
            except _Refused as refused:
                named = {name for name in _OTHER_WORDS if name in str(refused)} - self.refused
                if refused.status not in (400, 422) or not named:
                    raise
                self.refused |= named

    def _options(self, max_tokens: int) -> dict[str, object]:
        options: dict[str, object] = {
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        for name in self.refused:
            value, other = options.pop(name), _OTHER_WORDS[name]
            if other is not None:
                options[other] = value
        return options

    def _open(self, path: str, body: Mapping[str, object] | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "*/*"},
        )
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        try:
            response = _opener(self.url).open(request, timeout=self.silence_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        assert isinstance(response, http.client.HTTPResponse)
        return response

    def _refusal(self, error: urllib.error.HTTPError) -> _Refused:
        try:
            said = error.read(ERROR_BYTES).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            said = ""
        try:
            said = error_reason(json.loads(said))
        except ValueError:
            said = " ".join(said.split())[:LONGEST_REASON]
        if self.key:
            said = said.replace(self.key, "***")  # some servers repeat a wrong key
        return _Refused(
            f"{self.url} answered {error.code}: {said or error.reason}. Check --url, --model and "
            "the key (--api-key-env).",
            error.code,
        )

    def _unreachable(self, error: Exception) -> ModelError:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return ModelError(
            f"{self.url} could not be reached ({reason or type(error).__name__}). Check the "
            "address, and that the server runs."
        )


class _Refused(ModelError):
    """An answer of the server that is no success."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Leave the redirect as the answer it is."""


def open_server(url: str, key_variable: str | None, model: str | None) -> ChatServer:
    """Return the server of an address, with its key and model. Raises ConfigError, ModelError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url} is no address of a server. Give one like http://HOST:PORT/v1.")
    if "@" in parts.netloc:
        raise ConfigError("--url must hold no name or password; give a key with --api-key-env.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    server = ChatServer(urlunsplit((parts.scheme, parts.netloc, path, "", "")), model or "")
    if key_variable:
        server.key = os.environ.get(key_variable, "").strip()
        if not server.key or not server.key.isascii() or not server.key.isprintable():
            raise ConfigError(
                f"The environment variable {key_variable} (--api-key-env) holds no key. Set it to "
                "the server's key in the shell that runs this."
            )
    if not server.model:
        names = server.models()
        if not names:
            raise ConfigError(f"{server.url} lists no model; name one with --model NAME.")
        server.model = names[0]
    return server


def _opener(url: str) -> urllib.request.OpenerDirector:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host == "::1" or host.startswith("127."):
        # A proxy is for other machines, whatever the environment says.
        return urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(_NoRedirect)
