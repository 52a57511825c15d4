"""A picture named by its address is fetched from public hosts only, within size and time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from fake_engine import FakeEngine
from pictures_to_send import png
from served_api import serving

from vlm.config import Settings
from vlm.errors import PictureError
from vlm.server import web_pictures
from vlm.server.web_pictures import WebPictures, is_public, public_addresses


class Site(BaseHTTPRequestHandler):
    """Answers by the path that is asked."""

    asked: list[str] = []
    release = threading.Event()

    def do_GET(self) -> None:
        Site.asked.append(f"{self.headers['Host'].partition(':')[0]}{self.path}")
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            while not Site.release.wait(0.05):
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                return
        elif self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x")
        elif self.path.startswith("/picture"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(png())))
            self.end_headers()
            self.wfile.write(png())
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def port() -> Iterator[int]:
    """A web site on this machine, and its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    Site.asked, Site.release = [], threading.Event()
    yield server.server_address[1]
    Site.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def find(host: str, port: int) -> list[str]:
    """The test's own name service: one public host, which this machine plays."""
    return ["127.0.0.1"] if host == "public.example" else []


def fetch(url: str, max_bytes: int = 100_000, timeout_s: float = 10.0) -> bytes:
    return WebPictures(timeout_s, find).fetch(url, max_bytes)


def test_a_picture_is_fetched_also_over_redirects_and_odd_paths(port: int) -> None:
    root = f"http://public.example:{port}"
    assert fetch(f"{root}/picture") == png()
    assert fetch(f"{root}/to/{root}/picture?größe=1") == png()
    assert Site.asked[-1].startswith("public.example/picture?gr%")


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{port}/picture",
        "http://localhost:{port}/picture",
        "http://inner.example:{port}/picture",
        "http://user@public.example:{port}/picture",
        "file:///etc/passwd",
        "ftp://public.example/picture",
    ],
)
def test_no_other_place_is_asked_directly_or_over_a_redirect(target: str, port: int) -> None:
    target = target.format(port=port)
    with pytest.raises(PictureError, match="not on the public web"):
        fetch(target)
    assert not Site.asked
    with pytest.raises(PictureError, match="not on the public web"):
        fetch(f"http://public.example:{port}/to/{target}")
    assert len(Site.asked) == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/missing", "status 404"),
        ("/cut", "could not be fetched"),
        ("/endless", "larger than"),
        ("/to/", "status 302"),
    ],
)
def test_what_goes_wrong_is_told(path: str, said: str, port: int) -> None:
    with pytest.raises(PictureError, match=said):
        fetch(f"http://public.example:{port}{path}")


def test_redirects_end(port: int) -> None:
    root = f"http://public.example:{port}"
    with pytest.raises(PictureError, match="on and on"):
        fetch(f"{root}" + f"/to/{root}" * 4 + "/picture")


def test_a_picture_known_to_be_too_large_is_not_read(port: int) -> None:
    with pytest.raises(PictureError, match="larger than"):
        fetch(f"http://public.example:{port}/picture", max_bytes=10)


def test_dripping_does_not_buy_time(port: int) -> None:
    began_s = time.monotonic()
    with pytest.raises(PictureError, match="within 0.5 s"):
        fetch(f"http://public.example:{port}/drip", timeout_s=0.5)
    assert time.monotonic() - began_s < 5


def test_an_address_without_a_host_is_none() -> None:
    with pytest.raises(PictureError, match="not on the public web"):
        fetch("http:///picture")


@pytest.mark.parametrize("url", ["http://public.example:1/x", "http://public.example:99999/x"])
def test_a_host_that_does_not_answer_is_told(url: str) -> None:
    with pytest.raises(PictureError, match="could not be fetched"):
        fetch(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
        "2001:0:7f00:1::", "no address",
    ],
)  # fmt: skip
def test_inner_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_outer_addresses_are_public(address: str) -> None:
    assert is_public(address)


def test_a_name_with_one_inner_address_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(web_pictures.socket, "getaddrinfo", lambda *_, **__: found)
    assert public_addresses("both.example", 80) == []
    monkeypatch.setattr(web_pictures.socket, "getaddrinfo", lambda *_, **__: found[:1])
    assert public_addresses("outer.example", 80) == ["8.8.8.8"]


def test_the_api_fetches_only_when_allowed_and_never_from_inside(port: int) -> None:
    engine = FakeEngine()
    settings = Settings.model_validate({"server": {"remote_pictures": True}})
    url = f"http://127.0.0.1:{port}/picture"
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]}
    for allowed, said in ((settings, "not on the public web"), (Settings(), "switched off")):
        with serving(engine, allowed) as api, httpx2.Client(trust_env=False) as web:
            answer = web.post(f"{api}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
    assert not Site.asked and not engine.requests
