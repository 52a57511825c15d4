"""The command line: the page is up soon whatever the model does, and mistakes are told."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import psutil
import pytest
from fake_engine import FakeEngine
from own_loop import run_async

import demo
from vlm.chat import ModelState
from vlm.config import Settings
from vlm.ui import serve

REPOSITORY = Path(__file__).resolve().parent.parent


def test_build_demo_makes_a_page_over_any_engine() -> None:
    async def build() -> gr.Blocks:
        return demo.build_demo(FakeEngine(), Settings())

    # Inside a running loop, because outside of one Gradio opens loops and never closes them.
    assert isinstance(run_async(build), gr.Blocks)


@pytest.mark.slow
def test_the_page_is_up_before_the_model_and_ends_on_request(
    free_port: int, tmp_path: Path
) -> None:
    environment = os.environ | {"GRADIO_TEMP_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "demo.py", "--model", "bundled", "--port", str(free_port)]
    started = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        page = _wait_for_page(f"http://127.0.0.1:{free_port}/")
        used = psutil.Process(started.pid).cpu_times()
        assert "Talk to a picture" in page
        # Of computing time, because a busy machine stretches the time on the clock.
        assert used.user + used.system < 5.0
        assert started.stdout is not None
        assert f"http://127.0.0.1:{free_port}" in started.stdout.readline()
        started.send_signal(signal.SIGTERM)
        _, error = started.communicate(timeout=20)
    finally:
        started.kill()
    assert started.returncode == 0
    assert "Traceback" not in error


def _wait_for_page(url: str) -> str:
    end_s = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < end_s, "the page never came"
            time.sleep(0.05)


def test_serving_needs_none_of_the_models_libraries() -> None:
    code = (
        "import sys, demo, vlm.ui.serve; "
        "print(sorted({'torch', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_a_taken_port_is_told_with_a_way_out(
    free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        assert demo.main(["--port", str(free_port)]) == 2
    said = capsys.readouterr().err
    assert str(free_port) in said and f"--port {free_port + 1}" in said


def test_wrong_flags_are_named_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["serve", "--precision", "int9", "--detail", "finest"]) == 2
    said = capsys.readouterr().err
    assert "precision" in said and "image_detail" in said


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dokter", 'did you mean "doctor"?'), ("aks", 'did you mean "ask"?'), ("photo.jpg", "")],
)
def test_a_misspelt_command_gets_the_nearest_one(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main([name, "--model", "bundled"]) == 2
    said = capsys.readouterr().err
    assert f'no command "{name}"' in said and hint in said
    assert ("did you mean" in said) == bool(hint)
    assert "serve, ask, batch, bench, doctor" in said and 'demo.py ask IMAGE -q "QUESTION"' in said


def test_flags_go_over_the_settings_file(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    flags = ["--config", "fast", "--model", "bundled", "--detail", "700", "--host", "0.0.0.0"]
    settings = serve.read_settings(parser.parse_args(flags))
    assert settings.model.model == "bundled"
    assert settings.picture.max_visual_tokens == 700
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 7860)
    monkeypatch.setenv("GRADIO_SERVER_PORT", "7999")
    assert serve.read_settings(parser.parse_args([])).server.port == 7999
    assert serve.read_settings(parser.parse_args(["--port", "7001"])).server.port == 7001


@pytest.mark.parametrize("is_flag", [True, False])
def test_a_wrong_port_is_laid_to_who_gave_it(
    is_flag: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_flag:
        monkeypatch.setenv("GRADIO_SERVER_PORT", "99999")
    assert demo.main(["--port", "99999"] if is_flag else []) == 2
    said = capsys.readouterr().err
    assert f"(from {'--port' if is_flag else 'GRADIO_SERVER_PORT'}) = 99999" in said
    assert ".toml" not in said


def test_inside_a_space_the_page_is_reachable_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    monkeypatch.setenv("SPACE_ID", "somebody/space")
    assert serve.read_settings(parser.parse_args([])).server.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("given", "command", "rest"),
    [
        ([], "serve", []),
        (["--model", "bundled"], "serve", ["--model", "bundled"]),
        (["serve", "--port", "1"], "serve", ["--port", "1"]),
        (["ask", "a.png", "-q", "?"], "ask", ["a.png", "-q", "?"]),
        (["bench", "--json"], "bench", ["--json"]),
        (["doctor"], "doctor", []),
    ],
)
def test_commands_get_their_own_arguments(
    monkeypatch: pytest.MonkeyPatch, given: list[str], command: str, rest: list[str]
) -> None:
    called: list[tuple[str, list[str]]] = []

    def load(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            __doc__="Does it.",
            add_arguments=lambda parser: parser.add_argument("rest", nargs=argparse.REMAINDER),
            run=lambda args: called.append((name, args.rest)) or 7,  # type: ignore[func-returns-value]
        )

    monkeypatch.setattr(demo.importlib, "import_module", load)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", _remainder)
    assert demo.main(given) == 7
    assert called == [(demo.COMMANDS[command], rest)]


def _remainder(_parser: argparse.ArgumentParser, given: list[str]) -> argparse.Namespace:
    return argparse.Namespace(rest=given)


def test_the_terminal_follows_the_model() -> None:
    moving = ModelState("downloading", "Fetching.", 2**30, 4 * 2**30, eta_s=90.0)
    assert serve.describe_state(moving) == (
        "Fetching. · 1.00 GiB of 4.00 GiB · about 00:01:30 left"
    )
    ready = ModelState("ready", model="a/b", precision="mixed", precision_reason="measured")
    assert serve.describe_state(ready) == "Ready · a/b in mixed: measured"
