"""Say what went wrong at a remote server in words for people, without its key or whole address."""

from __future__ import annotations

import email.utils
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from vlm.errors import (
    BusyError,
    ContextLengthError,
    GenerationError,
    ModelError,
    ModelNotFoundError,
    PictureError,
    PromptError,
    VLMError,
)
from vlm.remote.address import Address
from vlm.remote.stream import error_reason

logger = logging.getLogger(__name__)

_CONTEXT = re.compile(
    r"context.?(length|size|window)|maximum model length|exceed_context|prompt is too long"
)
_NO_PICTURES = re.compile(
    r"(image|vision|multimodal)[\w ]{0,20} not supported|mmproj|at most 0 image"
    r"|(not|n't) (support|accept|take|process) (any )?(image|vision|multimodal|picture)"
    r"|not a (multi-?modal|vision)"
)
_LONGEST_WAIT_S = 3600


class ServerAwayError(ModelError):
    """A server that cannot be reached or is not ready; asked again later, it may be."""


@dataclass(frozen=True)
class Asked:
    """What was asked of a server, so that its refusal can be understood."""

    address: Address
    model: str = ""
    """Empty: its list of models was asked for."""
    has_pictures: bool = False


def connection_error(error: Exception, address: Address) -> VLMError:
    """Turn what a connection died of into one of our errors."""
    logger.info("no answer from %s: %s", address.host, type(error).__name__)
    host = address.host
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ModelError(
                f"The certificate of {host} is not trusted ({cause.verify_message}). "
                "Use an address with a valid one, or name its authority's file in SSL_CERT_FILE."
            )
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return ModelError(
            f"{host} does not speak TLS, which https:// needs. "
            "Check --base-url: the server may want http://."
        )
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return ServerAwayError(f"No machine is known as {host}. Check --base-url and the network.")
    if isinstance(error, httpx2.ProxyError):
        return ServerAwayError(
            f"The proxy did not let a request to {host} through. Check HTTPS_PROXY and NO_PROXY."
        )
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return ServerAwayError(
            f"{host} cannot be reached. Check that the server runs, "
            "that --base-url is its address, and that no firewall is between."
        )
    if isinstance(error, httpx2.TimeoutException):
        return ServerAwayError(f"{host} was silent for too long. Try again when it has less to do.")
    return ServerAwayError(f"The connection to {host} broke off before an answer came. Try again.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def status_error(status: int, body: bytes, headers: Mapping[str, str], asked: Asked) -> VLMError:
    """Turn an HTTP answer that is no success into one of our errors."""
    try:
        said = json.loads(body)
    except ValueError:
        said = body.decode(errors="replace") if b"<" not in body else ""
    return refusal(status, said, headers, asked)


def stream_error(error: Any, asked: Asked) -> VLMError:
    """Turn an error object that came inside a stream into one of our errors."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return refusal(status, error, {}, asked)


def refusal(status: int, said: Any, headers: Mapping[str, str], asked: Asked) -> VLMError:
    """Choose the error that fits a server's status and what it says.

    What a server says of its own inside (5xx) goes to the log; people get a sentence.
    """
    host, model = asked.address.host, asked.model
    reason = asked.address.redact(error_reason(said)).rstrip(". ")
    logger.info("%s answered %d: %s", host, status, reason)
    everything = f"{said}".lower()
    if model and status != 429 and _CONTEXT.search(everything):
        return ContextLengthError(
            f"This chat with its answer is longer than {model} at {host} takes. "
            "Start a new chat, remove pictures, or choose a smaller longest answer."
        )
    is_about_access = status in (401, 403, 413, 429)
    if asked.has_pictures and not is_about_access and _NO_PICTURES.search(everything):
        return PromptError(
            f"{model} at {host} takes no pictures. Choose a model that does with --model, "
            "or ask without pictures."
        )
    known = _by_status(status, reason, headers, asked)
    if known is not None:
        return known
    if status >= 500:
        return GenerationError(
            f"{host} failed to answer (status {status}). Try again; its own log says why."
        )
    why = reason or "it gave no reason"
    return PromptError(
        f"{host} refused this with status {status}: {why}. Change the question or the settings."
    )


def _by_status(
    status: int, reason: str, headers: Mapping[str, str], asked: Asked
) -> VLMError | None:
    host = asked.address.host
    if status == 401:
        return ModelError(_wrong_key(asked.address))
    if status == 403:
        return ModelError(f"{host} does not allow this. Check what its key may do.")
    if status == 404 and asked.model:
        return ModelNotFoundError(
            f"{host} has no model {asked.model}, or nothing answers chats there. "
            "Check --model and --base-url."
        )
    if status == 413:
        return PictureError(
            f"This chat is too large for {host}. Remove pictures, or lower the image detail."
        )
    if status == 429:
        return BusyError(f"{host} takes no more questions now. Try again {_when(headers)}.")
    if 300 <= status < 400:
        return ModelError(f"{host} sends on to another address. Give that one with --base-url.")
    if status in (408, 502, 503, 504):
        return ServerAwayError(f"{host} is not ready (status {status}). Try again in a minute.")
    return None


def _wrong_key(address: Address) -> str:
    if address.key:
        return (
            f"{address.host} does not accept the key. Put the right one into the environment "
            f"variable {address.key_variable}, and start again."
        )
    return (
        f"{address.host} wants a key. Put it into an environment variable, and start again with "
        "--api-key-env and the variable's name."
    )


def _when(headers: Mapping[str, str]) -> str:
    """Read Retry-After: seconds or a date."""
    given = headers.get("retry-after", "").strip()
    wait_s = 0
    if given.isascii() and given.isdigit():
        wait_s = int(given[:9])
    else:
        try:
            wait_s = round(email.utils.parsedate_to_datetime(given).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            pass
    return f"in {wait_s} s" if 0 < wait_s <= _LONGEST_WAIT_S else "later"
