"""How the page is served: its port, logins, proxies, the public link, a Space."""

from __future__ import annotations

import argparse
import base64
import contextlib
import gc
import http.client
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gradio.networking
import gradio.tunneling
import httpx2
import pytest
from fake_engine import FakeEngine
from gradio_client import Client
from openai import AuthenticationError, OpenAI
from pictures_to_send import data_url, png
from playwright.sync_api import Browser, expect

import demo
from vlm.config import Settings
from vlm.errors import ConfigError
from vlm.server.attempts import Attempts
from vlm.ui import login, serve, share
from vlm.ui.login import let_tools_in, read_logins
from vlm.ui.ports import find_port
from vlm.ui.proxies import spare_proxies, without_proxies
from vlm.ui.serve import build_server, read_root_path

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
LOGINS = {"ann": "a pass:word", "bob": "gr\u00fcn"}
KEY = "a-key-for-this-test"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_a_taken_port_gives_way_to_the_next_free_one(taken: int) -> None:
    chosen = find_port("127.0.0.1", taken, is_fixed=False)
    assert taken < chosen <= taken + 100
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", chosen))


def test_a_port_that_was_asked_for_is_refused_with_a_free_one(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"port {taken}: .*in use.* Port (\d+) is free") as said:
        find_port("127.0.0.1", taken, is_fixed=True)
    named = int(re.findall(r"--port (\d+)", str(said.value))[0])
    assert find_port("127.0.0.1", named, is_fixed=True) == named


def test_a_host_that_is_not_of_this_machine_is_told() -> None:
    with pytest.raises(ConfigError, match="--host takes an address of this machine"):
        find_port("192.0.2.1", 7860, is_fixed=False)


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("flags", "variable"), [(["--port"], ""), ([], "GRADIO_SERVER_PORT")])
def test_only_a_port_nobody_chose_may_change(
    flags: list[str],
    variable: str,
    taken: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings.model_validate({"server": {"port": taken}})
    chosen = serve._choose_port(arguments(), settings)
    assert capsys.readouterr().out == (
        f"Port {taken} is taken by another program; taking {chosen} instead.\n"
    )
    if variable:
        monkeypatch.setenv(variable, str(taken))
    with pytest.raises(ConfigError, match="is free"):
        serve._choose_port(arguments(*flags, *([str(taken)] if flags else [])), settings)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["ann:a pass:word"], {"ann": "a pass:word"}),
        (["ann:x", "bob:y"], {"ann": "x", "bob": "y"}),
        (None, {}),
    ],
)
def test_logins_are_read(given: list[str] | None, read: dict[str, str]) -> None:
    assert read_logins(given) == read


@pytest.mark.parametrize("given", ["ann", "ann:", ":secret", ""])
def test_half_a_login_is_refused_without_showing_it(given: str) -> None:
    with pytest.raises(ConfigError, match="--auth USER:PASSWORD") as said:
        read_logins([given])
    assert "secret" not in str(said.value)


def test_a_login_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLM_AUTH", "ann:x")
    assert read_logins(None) == {"ann": "x"}
    assert read_logins(["bob:y"]) == {"bob": "y"}


def test_a_public_link_needs_a_login_or_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--share"]) == 2
    said = capsys.readouterr().err
    assert "--auth USER:PASSWORD" in said and "--share-without-password" in said
    share.check_share(True, True, {})
    share.check_share(True, False, {"ann": "x"})
    share.check_share(False, False, {})


@pytest.mark.parametrize(
    ("given", "read"), [("/talk/", "/talk"), ("https://a.b/talk", "https://a.b/talk"), ("", "")]
)
def test_a_root_path_is_read(given: str, read: str) -> None:
    assert read_root_path(given) == read


def test_a_wrong_root_path_is_refused() -> None:
    with pytest.raises(ConfigError, match='"talk" must begin with /'):
        read_root_path("talk")


class Served:
    """A whole server over a FakeEngine, and ways to ask it."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.url = url
        self.engine = engine

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", timeout=60, trust_env=False, **options)

    def post(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}{path}", timeout=60, trust_env=False, **options)


def start(
    logins: Mapping[str, str], api_key: str = "", root_path: str = "", mcp: bool = False
) -> Iterator[Served]:
    settings = Settings.model_validate({"server": {"api_key": api_key}})
    engine = FakeEngine()
    page, options = build_server(engine, settings, mcp=mcp, logins=logins)
    _, url, _ = page.launch(
        quiet=True, prevent_thread_lock=True, root_path=root_path, share=False, **options
    )
    let_tools_in(page, url, logins)
    yield Served(url.rstrip("/"), engine)
    page.close(verbose=False)
    del page, options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    """A server with logins and no key, with tools."""
    yield from start(LOGINS, mcp=True)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Served]:
    """A server with logins and a key."""
    yield from start(LOGINS, api_key=KEY)


CLOSED = [
    ("GET", "/config"), ("GET", "/gradio_api/info"), ("POST", "/gradio_api/queue/join"),
    ("POST", "/gradio_api/call/ask"), ("POST", "/gradio_api/upload"), ("POST", "/gradio_api/reset"),
    ("GET", "/gradio_api/file=/etc/passwd"), ("GET", "/gradio_api/heartbeat/x"),
    ("POST", "/gradio_api/cancel"), ("GET", "/gradio_api/mcp/"), ("POST", "/gradio_api/mcp/"),
    ("GET", "/gradio_api/mcp/schema"), ("GET", "/monitoring"), ("GET", "/gradio_api/openapi.json"),
    ("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/v1/nothing"),
    ("GET", "/metrics"), ("POST", "/warmup"), ("GET", "//v1/models"), ("GET", "/nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_nothing_is_told_without_a_login(method: str, path: str, locked: Served) -> None:
    wrong = {"Authorization": basic("eve", "wrong")}
    for headers in ({}, wrong, {"Authorization": "Basic x"}):
        answer = httpx2.request(
            method, f"{locked.url}{path}", headers=headers, timeout=60, trust_env=False
        )
        if headers is wrong and answer.status_code == 429:  # by now she was wrong too often
            assert answer.json()["error"]["code"] == "too_many_attempts"
            continue
        assert answer.status_code == 401, path
        assert answer.json()["error"]["code"] == "login_required"
        assert "WWW-Authenticate" in answer.headers or path.startswith("/gradio_api")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_without_a_login_the_page_shows_the_form_and_nothing_else(locked: Served) -> None:
    page = locked.get("/")
    assert page.status_code == 200 and '"auth_required":true' in page.text
    assert '"dependencies":[]' in page.text and "Talk to a picture" not in config_of(page.text)
    assert locked.get("/health").status_code == 200


def config_of(page: str) -> str:
    return page.split("window.gradio_config", 1)[1].split("</script>", 1)[0]


@pytest.mark.parametrize("user", LOGINS)
def test_a_login_as_a_header_opens_everything(user: str, locked: Served) -> None:
    headers = {"Authorization": basic(user, LOGINS[user])}
    for path in ("/config", "/gradio_api/info", "/v1/models", "/metrics"):
        assert locked.get(path, headers=headers).status_code == 200, path


def test_a_login_in_the_form_opens_everything(locked: Served) -> None:
    with httpx2.Client(base_url=locked.url, timeout=60, trust_env=False) as browser:
        wrong = {"username": "ann", "password": "a pass"}
        assert browser.post("/login", data=wrong).status_code == 400
        right = {"username": "ann", "password": LOGINS["ann"]}
        assert browser.post("/login", data=right).status_code == 200
        for path in ("/config", "/gradio_api/info", "/v1/models", "/metrics"):
            assert browser.get(path).status_code == 200, path


@pytest.mark.browser
def test_a_person_logs_in_and_gets_the_page(locked: Served, browser: Browser) -> None:
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(locked.url)
    tab.get_by_label("username").fill("bob")
    tab.get_by_label("password").fill(LOGINS["bob"])
    expect(tab.locator("#box")).to_have_count(0)
    tab.get_by_role("button", name="Login").click()
    expect(tab.locator("#box textarea")).to_be_visible()
    tab.locator("#box textarea").fill("What is it?")
    tab.locator("#box .submit-button").click()
    expect(tab.locator("#chat [data-testid=bot]")).to_contain_text("A red circle.")
    context.close()


def test_gradios_client_and_openais_client_log_in(locked: Served) -> None:
    picture = data_url(png("red"))
    client = Client(locked.url, auth=("ann", LOGINS["ann"]), verbose=False, analytics_enabled=False)
    assert client.predict(picture, "What is it?", api_name="/ask") == "A red circle."
    client.close()
    with OpenAI(base_url=f"{locked.url}/v1", api_key="ann:a pass:word", timeout=60) as openai:
        said = openai.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "What is it?"}]
        )
    assert said.choices[0].message.content == "A red circle."
    with OpenAI(base_url=f"{locked.url}/v1", api_key="ann:wrong", max_retries=0) as openai:
        with pytest.raises(AuthenticationError, match="needs a login"):
            openai.models.list()


def test_a_tool_works_with_a_login_even_after_its_user_logged_out(locked: Served) -> None:
    login = {"Authorization": basic("ann", LOGINS["ann"])}
    headers = login | {"Accept": "application/json, text/event-stream"}
    for _ in range(2):
        call = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": tool_named("ask", locked, headers),
                       "arguments": {"picture": data_url(png("red")), "question": "What?"}},
        }  # fmt: skip
        answer = locked.post("/gradio_api/mcp/", json=call, headers=headers)
        assert answer.status_code == 200 and "A red circle." in answer.text, answer.text
        locked.get("/logout", headers=login)


def tool_named(ending: str, served: Served, headers: dict[str, str]) -> str:
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = served.post("/gradio_api/mcp/", json=listing, headers=headers)
    found = re.findall(r'"name":\s*"(\w+)"', answer.text)
    return next(name for name in found if name.endswith(ending))


def test_with_a_key_the_api_asks_for_the_key_and_the_rest_for_the_login(keyed: Served) -> None:
    by_key = {"Authorization": f"Bearer {KEY}"}
    by_login = {"Authorization": basic("ann", LOGINS["ann"])}
    assert keyed.get("/v1/models", headers=by_key).status_code == 200
    assert keyed.get("/metrics", headers=by_key).status_code == 200
    for headers in ({}, by_login):
        refused = keyed.get("/v1/models", headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert keyed.get("/config", headers=by_key).status_code == 401
    assert keyed.get("/config", headers=by_login).status_code == 200


def test_wrong_logins_are_bounded_in_rate_and_lock_nobody_else_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(login, "Attempts", partial(Attempts, within_s=3600))
    running = start(LOGINS)
    server = next(running)
    tried = [
        server.post("/login", data={"username": "ann", "password": f"p{n}"}) for n in range(11)
    ]
    assert [answer.status_code for answer in tried] == [400] * 10 + [429]
    assert int(tried[-1].headers["retry-after"]) > 0
    right = {"Authorization": basic("bob", LOGINS["bob"])}
    for number in range(11):
        wrong = server.get("/config", headers={"Authorization": basic("ann", f"p{number}")})
        assert wrong.status_code == (401 if number < 10 else 429)
        assert server.get("/config", headers=right).status_code == 200
    even_right = server.get("/config", headers={"Authorization": basic("ann", LOGINS["ann"])})
    assert even_right.json()["error"]["code"] == "too_many_attempts"
    running.close()


def test_headers_for_another_server_shut_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "Attempts", partial(Attempts, within_s=3600))
    running = start(LOGINS)
    server = next(running)
    others = {"Authorization": basic("proxy", "its own")}
    for _ in range(12):
        assert server.get("/health", headers=others).status_code == 200
        assert server.get("/", headers=others).status_code == 200
    assert server.get("/config", headers=others).status_code == 429
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as browser:
        right = {"username": "ann", "password": LOGINS["ann"]}
        assert browser.post("/login", data=right, headers=others).status_code == 200
        for name in ("Authorization", "X-HF-Authorization"):
            for value in (others["Authorization"], "Bearer hf_token"):
                assert browser.get("/config", headers={name: value}).status_code == 200
    for _ in range(12):
        token = server.get("/config", headers={"X-HF-Authorization": "Bearer hf_token"})
        assert token.status_code == 401
    guess = {"Authorization": basic("ann", "wrong")}
    for _ in range(10):
        server.get("/", headers=guess)
    even_right = server.get("/", headers={"Authorization": basic("ann", LOGINS["ann"])})
    assert '"auth_required":true' in even_right.text, "an open page must not tell a right guess"
    running.close()


def test_the_turns_of_a_login_are_one_persons_wherever_it_comes_from(locked: Served) -> None:
    engine = locked.engine
    engine.reset()
    client = Client(locked.url, auth=("ann", LOGINS["ann"]), verbose=False, analytics_enabled=False)
    client.predict(data_url(png("red")), "What is it?", api_name="/ask")
    client.close()
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    for user in LOGINS:
        headers = {"Authorization": basic(user, LOGINS[user])}
        assert locked.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    page, ann, bob = (request.visitor.partition("/")[0] for request in engine.requests)
    assert page == ann != bob


def test_bodies_that_nobody_needs_are_refused_unread(below: Served) -> None:
    for path, kind in (("queue/join", "application/json"), ("upload", "multipart/form-data")):
        asked = http.client.HTTPConnection("127.0.0.1", int(below.url.rpartition(":")[2]))
        asked.putrequest("POST", f"/gradio_api/{path}")
        asked.putheader("Content-Type", kind)
        asked.putheader("Content-Length", str(10**9))
        asked.endheaders()
        answer = asked.getresponse()
        assert answer.status == 413 and b"request_too_large" in answer.read()
        asked.close()
    # What nothing is said of is counted as it comes.
    endless = (b" " * 2**20 for _ in range(10**6))
    with contextlib.suppress(httpx2.TransportError):
        headers = {"Content-Type": "application/json"}
        refused = below.post("/gradio_api/call/ask", content=endless, headers=headers)
        assert refused.status_code == 413


def test_no_password_stands_in_what_is_sent(locked: Served) -> None:
    headers = {"Authorization": basic("ann", LOGINS["ann"])}
    for path in ("/", "/config", "/gradio_api/info", "/metrics"):
        text = locked.get(path, headers=headers).text
        assert LOGINS["ann"] not in text and LOGINS["bob"] not in text


def relay(port: int, prefix: str) -> ThreadingHTTPServer:
    """A reverse proxy on a path of its own, as the README sets up nginx; streams as it reads."""

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {name: value for name, value in self.headers.items()}
            headers["X-Forwarded-Host"] = self.headers["Host"]
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            inner.request(self.command, self.path.removeprefix(prefix), body, headers)
            answer = inner.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            with contextlib.suppress(OSError):  # a tab that was closed
                while piece := answer.read1(65536):
                    self.wfile.write(piece)
            inner.close()

        do_GET = do_POST = do_HEAD = pass_on

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def below() -> Iterator[Served]:
    """A server that a proxy shows at /talk."""
    yield from start({}, root_path="/talk")


@pytest.mark.browser
def test_a_page_below_a_path_of_a_proxy_works(
    below: Served, browser: Browser, tmp_path: Path
) -> None:
    picture = tmp_path / "red.png"
    picture.write_bytes(png("red"))
    proxy = relay(int(below.url.rpartition(":")[2]), "/talk")
    context = browser.new_context()
    tab = context.new_page()
    failed: list[str] = []
    tab.on("response", lambda got: failed.append(got.url) if got.status >= 400 else None)
    tab.goto(f"http://127.0.0.1:{proxy.server_port}/talk/")
    tab.locator("#box input[type=file]").first.set_input_files(picture)
    expect(tab.locator("#box .thumbnail-item")).to_have_count(1)
    tab.locator("#box textarea").fill("What is it?")
    tab.locator("#box .submit-button").click()
    expect(tab.locator("#chat [data-testid=bot]")).to_contain_text("A red circle.")
    context.close()
    proxy.shutdown()
    proxy.server_close()
    assert not failed


def test_a_page_below_a_path_of_a_proxy_names_its_parts_there(below: Served) -> None:
    proxied = {"X-Forwarded-Host": "example.org", "X-Forwarded-Proto": "https"}
    page = below.get("/", headers=proxied).text
    assert '"root":"https://example.org/talk"' in config_of(page)
    assert below.get("/v1/models").status_code == 200


def test_the_environments_proxies_are_kept_from_own_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    spare_proxies("10.0.0.5")
    assert "NO_PROXY" not in os.environ, "the system's own settings would be lost"
    os.environ.update(
        https_proxy="http://127.0.0.1:9",
        ALL_PROXY="socks5://127.0.0.1:9",
        NO_PROXY="intra.net, localhost",
    )
    spare_proxies("10.0.0.5")
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    assert os.environ["no_proxy"] == "intra.net,localhost,127.0.0.1,::1,10.0.0.5"
    before = dict(os.environ)
    with without_proxies():
        assert not [name for name in os.environ if name.lower().endswith("_proxy")]
    assert dict(os.environ) == before


class Payload:
    """What the share server says when it is there."""

    status_code = 200

    def json(self) -> list[dict[str, Any]]:
        return [{"host": "127.0.0.1", "port": 9, "root_ca": "none"}]


def advice(line: str) -> bool:
    return (
        "\n" not in line
        and line.startswith("There is no public link: ")
        and "The local page works." in line
        and "ssh -L 7860:127.0.0.1:7860 USER@" in line
    )


def test_an_unreachable_share_server_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = share.describe_link("0.0.0.0", 7860, "token")  # no test reaches the network
    assert "api.gradio.app) cannot be reached" in line and advice(line)


def test_a_blocked_tunnel_program_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gradio.networking.httpx, "get", lambda *_, **__: Payload())
    blocked = tmp_path / "frpc"
    blocked.write_text("not to be run")
    monkeypatch.setattr(gradio.tunneling, "BINARY_PATH", str(blocked))
    line = share.describe_link("127.0.0.1", 7860, "token")
    assert "may not be started" in line and advice(line)


def test_a_tunnel_program_that_cannot_be_fetched_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def get(url: str, **_: Any) -> Payload:
        if url == gradio.tunneling.BINARY_URL:
            raise gradio.tunneling.httpx.ConnectError("blocked")
        return Payload()

    monkeypatch.setattr(gradio.networking.httpx, "get", get)
    monkeypatch.setattr(gradio.tunneling, "BINARY_FOLDER", tmp_path)
    monkeypatch.setattr(gradio.tunneling, "BINARY_PATH", str(tmp_path / "missing"))
    line = share.describe_link("127.0.0.1", 7860, "token")
    assert "could not be fetched" in line and advice(line)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_a_link_is_told_and_its_program_ends_with_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    gradio.tunneling.CURRENT_TUNNELS.clear()
    monkeypatch.setattr(gradio.networking.httpx, "get", lambda *_, **__: Payload())
    stand_in = tmp_path / "frpc"
    lines = ("#!/bin/sh", "echo 'start proxy success: http://a.gradio.live'", "exec sleep 60")
    stand_in.write_text("\n".join(lines))
    stand_in.chmod(0o755)
    monkeypatch.setattr(gradio.tunneling, "BINARY_PATH", str(stand_in))
    said: list[str] = []
    told = threading.Event()
    share.share("127.0.0.1", 7860, "token", lambda line: (said.append(line), told.set()))
    assert told.wait(60)
    assert said == ["Anyone with this link can reach this page: https://a.gradio.live"]
    (tunnel,) = gradio.tunneling.CURRENT_TUNNELS
    share.end_links()
    assert tunnel.proc is not None and tunnel.proc.wait(10) == -signal.SIGTERM
    for stream in (tunnel.proc.stdout, tunnel.proc.stderr):
        assert stream is not None
        stream.close()
    tunnel.proc = None  # nothing left for Gradio to end
    gradio.tunneling.CURRENT_TUNNELS.clear()
