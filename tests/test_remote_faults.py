"""What breaks on the way to a server becomes a sentence that says what to check."""

from __future__ import annotations

import socket
import ssl
from email.utils import formatdate
from time import time

import httpx2
import pytest
from fake_engine import wait_until
from fake_upstream import Make, running_upstream

from vlm.errors import BusyError, PromptError
from vlm.remote.address import Address
from vlm.remote.faults import Asked, connection_error, status_error
from vlm.ui.chinese import in_language

pytest_plugins = ("remote_fixtures",)
ADDRESS = Address("https://gpu:8000/v1", "gpu:8000")


def died_of(kind: type[Exception], cause: Exception | None) -> Exception:
    error = kind("died")
    error.__cause__ = cause
    return error


UNTRUSTED = ssl.SSLCertVerificationError(1, "x")
UNTRUSTED.verify_message = "self-signed certificate"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (died_of(httpx2.ConnectError, UNTRUSTED), "is not trusted (self-signed certificate)"),
        (died_of(httpx2.ConnectError, ssl.SSLError(1, "wrong version")), "does not speak TLS"),
        (died_of(httpx2.ConnectError, socket.gaierror(8, "x")), "No machine is known as gpu:8000"),
        (died_of(httpx2.ConnectError, ConnectionRefusedError()), "cannot be reached"),
        (died_of(httpx2.ConnectTimeout, None), "cannot be reached"),
        (died_of(httpx2.ReadTimeout, None), "silent for too long"),
        (died_of(httpx2.ProxyError, None), "The proxy did not let"),
        (died_of(httpx2.RemoteProtocolError, None), "broke off before an answer came"),
    ],
)
def test_each_way_to_die_has_its_sentence(error: Exception, said: str) -> None:
    message = str(connection_error(error, ADDRESS))
    assert said in message and "gpu:8000" in message
    assert "gpu:8000" in in_language(message, "zh") != message


def test_https_to_a_server_without_it_is_told(make_remote: Make) -> None:
    with running_upstream() as upstream:
        engine = make_remote(upstream.url.replace("http:", "https:"), is_ready=False)
        wait_until(lambda: engine.state().stage == "failed", timeout_s=30)
        assert "does not speak TLS" in engine.state().message


def test_a_date_to_come_back_is_read() -> None:
    asked = Asked(ADDRESS, "m")
    error = status_error(429, b"", {"retry-after": formatdate(time() + 30, usegmt=True)}, asked)
    assert isinstance(error, BusyError)
    assert str(error).removesuffix(" s.").rpartition(" ")[2] in ("28", "29", "30")
    for odd in ("soon", "-5", "99999999999999", ""):
        assert "Try again later." in str(status_error(429, b"", {"retry-after": odd}, asked))


@pytest.mark.parametrize(
    ("said", "is_about_pictures"),
    [
        (b'{"error": "image input is not supported - hint: provide the mmproj"}', True),
        (b'{"error": {"message": "this model does not support image input"}}', True),
        (b'{"message": "At most 0 image(s) may be provided in one prompt."}', True),
        (b'{"error": "x is not a multimodal model"}', True),
        (b'{"error": "cannot identify image file"}', False),
    ],
)
def test_a_model_without_eyes_is_known_by_what_servers_say(
    said: bytes, is_about_pictures: bool
) -> None:
    error = status_error(400, said, {}, Asked(ADDRESS, "m", has_pictures=True))
    assert isinstance(error, PromptError)
    assert ("takes no pictures" in str(error)) == is_about_pictures
