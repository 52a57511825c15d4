"""The repository as a Hugging Face Space: its front matter, its settings, its start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import REPOSITORY
from huggingface_hub import SpaceHardware, metadata_load

from vlm.config import load_settings

# The keys that Spaces know, from https://huggingface.co/docs/hub/spaces-config-reference
KNOWN = {
    "title", "emoji", "colorFrom", "colorTo", "sdk", "python_version", "sdk_version",
    "suggested_hardware", "suggested_storage", "app_file", "app_port", "base_path", "fullWidth",
    "header", "short_description", "models", "datasets", "tags", "thumbnail", "pinned",
    "hf_oauth", "hf_oauth_scopes", "hf_oauth_expiration_minutes", "disable_embedding",
    "startup_duration_timeout", "custom_headers", "preload_from_hub", "license",
}  # fmt: skip
COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
MODEL = "Qwen/Qwen3-VL-2B-Instruct"


@pytest.fixture(scope="module")
def front() -> dict[str, Any]:
    found = metadata_load(REPOSITORY / "README.md")
    assert isinstance(found, dict)
    return found


def pin(package: str) -> str:
    text = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}==(\S+)", text, re.MULTILINE)
    return str(version)


def test_the_front_matter_holds_only_what_spaces_know(front: dict[str, Any]) -> None:
    assert set(front) <= KNOWN
    assert (REPOSITORY / "README.md").read_bytes().startswith(b"---\n")


def test_the_space_is_built_with_what_the_app_is_pinned_to(front: dict[str, Any]) -> None:
    assert front["sdk"] == "gradio"
    assert front["sdk_version"] == pin("gradio")
    assert isinstance(front["python_version"], str), "3.10 without quotes would be 3.1"
    assert re.fullmatch(r"3\.\d+(\.\d+)?", front["python_version"])
    launch = (REPOSITORY / "launch.sh").read_text(encoding="utf-8")
    oldest, newest = map(int, re.findall(r"^oldest=(\d+) newest=(\d+)", launch, re.MULTILINE)[0])
    assert oldest <= int(front["python_version"].split(".")[1]) <= newest


def test_the_space_starts_a_file_that_is_here(front: dict[str, Any]) -> None:
    assert front["app_file"] == "demo.py"
    assert (REPOSITORY / front["app_file"]).is_file()


def test_what_people_see_of_the_space_keeps_to_the_rules(front: dict[str, Any]) -> None:
    assert front["title"]
    assert not re.search(r"\w", front["emoji"])
    assert {front["colorFrom"], front["colorTo"]} <= COLOURS
    assert 0 < len(front["short_description"]) <= 60
    assert front["license"] == "apache-2.0"
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert front["tags"] and all(re.fullmatch(r"[a-z0-9-]+", tag) for tag in front["tags"])


def test_the_model_is_there_before_the_first_visitor(front: dict[str, Any]) -> None:
    assert front["preload_from_hub"] == [MODEL] == front["models"]
    hardware = front["suggested_hardware"]
    assert hardware in {flavour.value for flavour in SpaceHardware} and hardware.startswith("cpu")
    # Spaces read a number and a unit.
    assert re.fullmatch(r"[1-9]\d*(m|h)", front["startup_duration_timeout"])


def test_the_settings_of_a_space_are_picked_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/talk-to-a-picture")
    settings = load_settings()
    assert settings == load_settings("space")
    assert settings.server.host == "0.0.0.0" and settings.model.model == "auto"
    assert settings.model.threads == 0, "counted as the container gives them"
    assert settings.server.max_upload_bytes < load_settings("default").server.max_upload_bytes


@pytest.mark.slow
def test_the_app_starts_in_the_environment_of_a_space(free_port: int, tmp_path: Path) -> None:
    closed = "127.0.0.1:9"
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    } | {
        "SYSTEM": "spaces", "SPACE_ID": "someone/talk", "SPACE_HOST": "someone-talk.hf.space",
        "SPACE_AUTHOR_NAME": "someone", "SPACE_REPO_NAME": "talk", "CPU_CORES": "2",
        "MEMORY": "16Gi", "GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": str(free_port),
        "GRADIO_TEMP_DIR": str(tmp_path), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1",
        # Nobody answers there; the second kind Gradio's client has no support for.
        "http_proxy": f"http://{closed}", "https_proxy": f"http://{closed}",
        "ALL_PROXY": f"socks5://{closed}",
    }  # fmt: skip
    environment.pop("HF_HUB_CACHE", None)
    log = (tmp_path / "log").open("w+")
    started = subprocess.Popen(
        [sys.executable, "demo.py"], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
    )
    try:
        page = _wait_for_page(f"http://127.0.0.1:{free_port}/", started)
        assert "Talk to a picture" in page.text
        # What a Space's own proxy says of the address that visitors see.
        proxied = {"X-Forwarded-Host": "someone-talk.hf.space", "X-Forwarded-Proto": "https"}
        config = httpx2.get(
            f"http://127.0.0.1:{free_port}/config", headers=proxied, timeout=60, trust_env=False
        ).json()
        assert config["root"] == "https://someone-talk.hf.space"
        assert config["max_file_size"] == load_settings("space").server.max_upload_bytes
        health = httpx2.get(f"http://127.0.0.1:{free_port}/health", timeout=60, trust_env=False)
        assert health.json()["status"] in ("finding", "downloading", "loading", "ready")
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()
        log.seek(0)
        said = log.read()
        log.close()
    assert f":{free_port}" in said, said
    assert json.dumps(environment["ALL_PROXY"]) not in said


def _wait_for_page(url: str, started: subprocess.Popen[bytes]) -> httpx2.Response:
    end_s = time.monotonic() + 240
    while True:
        assert started.poll() is None and time.monotonic() < end_s, "the page never came"
        try:
            return httpx2.get(url, timeout=60, trust_env=False)
        except httpx2.TransportError:
            time.sleep(0.2)
