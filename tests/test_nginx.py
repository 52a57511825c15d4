"""Behind a real nginx, set up as the README says, with 10 s of patience and a prompt of 30 s."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from conftest import REPOSITORY
from fake_engine import FakeEngine, Script, wait_until
from page_visitor import PageVisitor
from pictures_to_send import png

from vlm.chat import Piece
from vlm.config import Settings
from vlm.server.guard import place_of
from vlm.ui.serve import build_server

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
PROMPT_S = 30.0
# Gradio leaves event loops open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(
        NGINX is None and "CI" not in os.environ,
        reason="no nginx here (Debian: apt-get install nginx-light)",
    ),
]
CONFIGURATION = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{ listen 127.0.0.1:{port}; proxy_read_timeout 10s; {location} }}
}}
"""


def location(port: int) -> str:
    """The lines that the README gives for nginx, for a page on another port."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^location /talk/ \{.*?^\}", text, re.DOTALL | re.MULTILINE)
    return str(found).replace(":7860", f":{port}")


@pytest.fixture
def behind_nginx(tmp_path: Path, free_port: int) -> Iterator[tuple[FakeEngine, str]]:
    """A page that nginx shows at /talk; gives its engine and its address."""
    engine = FakeEngine()
    page, options = build_server(engine, Settings())
    page.launch(quiet=True, prevent_thread_lock=True, share=False, root_path="/talk", **options)
    assert page.server_port
    written = CONFIGURATION.format(
        folder=tmp_path, port=free_port, location=location(page.server_port)
    )
    (tmp_path / "nginx.conf").write_text(written)
    nginx = subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])

    def listens() -> bool:
        assert nginx.poll() is None, (tmp_path / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", free_port)) == 0

    try:
        wait_until(listens, timeout_s=20)
        yield engine, f"http://127.0.0.1:{free_port}/talk"
    finally:
        nginx.terminate()
        nginx.wait(20)
        engine.close()
        page.close(verbose=False)


@pytest.mark.slow
def test_a_long_prompt_outlasts_the_patience_of_a_proxy(
    behind_nginx: tuple[FakeEngine, str],
) -> None:
    engine, url = behind_nginx
    engine.script = Script(before=(Piece("prefill", progress=0.1),), by_step=True)
    engine.one_at_a_time = threading.Semaphore(2)  # type: ignore[assignment]
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}

    def stream() -> str:
        forged = {"X-Forwarded-For": "203.0.113.9"}
        with httpx2.Client(timeout=120, trust_env=False, headers=forged) as web:
            return web.post(f"{url}/v1/chat/completions", json=body).text

    def visit() -> str:
        with PageVisitor(url) as visitor:
            return visitor.ask("What is it?", ("red.png", png("red"))).answer

    with ThreadPoolExecutor(2) as pool:
        api, page = pool.submit(stream), pool.submit(visit)
        wait_until(lambda: len(engine.answers) == 2, timeout_s=60)
        time.sleep(PROMPT_S)
        engine.step(100)
        assert "A red circle." == page.result(60)
        assert "circle." in api.result(60) and "[DONE]" in api.result()
    # Who asks is whom nginx names, not whom a client makes up.
    assert all(one.visitor.startswith(place_of("127.0.0.1")) for one in engine.requests)
