"""The real command with the built-in model: health on the way up, then page, API and tools."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from conftest import REPOSITORY
from gradio_client import Client
from openai import AuthenticationError, OpenAI
from pictures_to_send import data_url, png

KEY = "a-key-for-this-test"
TOO_LONG_S = 240.0


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def told(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[int, str]]]:
    """Start the server; gives what /health told until it was ready, and ends the server."""
    folder: Path = tmp_path_factory.mktemp("server")
    environment = os.environ | {
        "GRADIO_TEMP_DIR": str(folder), "HF_HUB_OFFLINE": "1", "VLM_API_KEY": KEY,
        "XDG_CACHE_HOME": str(folder),
    }  # fmt: skip
    command = [sys.executable, "demo.py", "--model", "bundled", "--precision", "fp32", "--mcp"]
    log = (folder / "log").open("w")
    started = subprocess.Popen(
        [*command, "--port", str(port)], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
    )
    try:
        yield _wait_for_health(port, started)
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0, (folder / "log").read_text()
        assert KEY not in (folder / "log").read_text()
    finally:
        started.kill()
        started.wait()
        log.close()


def _wait_for_health(port: int, started: subprocess.Popen[bytes]) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    end_s = time.monotonic() + TOO_LONG_S
    while not told or told[-1][0] != 200:
        assert time.monotonic() < end_s and started.poll() is None, f"it never came: {told}"
        try:
            answer = httpx2.get(f"http://127.0.0.1:{port}/health", timeout=30, trust_env=False)
            now = (answer.status_code, answer.json()["status"])
            told += [now] if now not in told[-1:] else []
        except httpx2.TransportError:
            pass
        time.sleep(0.2)  # asked without a pause, the server has no time to load
    return told


@pytest.mark.slow
def test_one_port_serves_page_api_and_tools(told: list[tuple[int, str]], port: int) -> None:
    *before, last = told
    assert last == (200, "ready")
    assert before and all(status == 503 for status, _ in before)
    address = f"http://127.0.0.1:{port}"

    authorized = {"Authorization": f"Bearer {KEY}"}
    warm = httpx2.post(f"{address}/warmup", headers=authorized, timeout=120, trust_env=False)
    assert warm.json()["status"] == "ready" and warm.json()["latency_ms"] > 0

    picture = {"type": "image_url", "image_url": {"url": data_url(png("red", (224, 224)))}}
    question = {"type": "text", "text": "What colour is the background?"}
    with OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(AuthenticationError):
            client.models.list()
    with OpenAI(base_url=f"{address}/v1", api_key=KEY, timeout=120) as client:
        answer = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": [picture, question]}],  # type: ignore[list-item]
            temperature=0,
            presence_penalty=0,
            max_tokens=8,
        )
    said = answer.choices[0].message.content or ""

    gradio = Client(address, verbose=False, analytics_enabled=False, httpx_kwargs={"timeout": 60})
    by_gradio = gradio.predict(
        data_url(png("red", (224, 224))), question["text"], 8, 0, api_name="/ask"
    )
    assert said and by_gradio
    gradio.close()

    page = httpx2.get(f"{address}/", timeout=60, trust_env=False)
    config = httpx2.get(f"{address}/config", timeout=60, trust_env=False)
    for text in (page.text, config.text):
        assert KEY not in text and str(REPOSITORY) not in text
    metrics = httpx2.get(f"{address}/metrics", headers=authorized, timeout=60, trust_env=False)
    assert 'vlm_answers_total{outcome="length",source="gradio"}' in metrics.text or (
        'vlm_answers_total{outcome="stop",source="gradio"}' in metrics.text
    )
