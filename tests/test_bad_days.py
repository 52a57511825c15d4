"""Files that vanish, disks that fill up, memory that runs out: a sentence, and work goes on."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio.route_utils
import httpx2
import pytest
from browser_tab import Tab
from conftest import REPOSITORY
from fake_engine import FakeEngine, wait_until
from page_visitor import PageVisitor
from pictures_to_send import png
from PIL import Image
from playwright.sync_api import Browser, expect
from served_api import serving

from vlm.chat import AskRequest, Message, Sampling
from vlm.config import Settings
from vlm.engine import Engine
from vlm.errors import CheckpointError, GenerationError
from vlm.images import open_picture
from vlm.memory_floor import MemoryFloor
from vlm.server.refusals import without_folders
from vlm.ui.upload_room import make_room
from vlm.units import MIB

pytest_plugins = ("browser_fixtures",)
GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=8)


@pytest.fixture
def model_folder(bundled_folder: Path, tmp_path: Path) -> Path:
    """A copy of the built-in model that may be damaged."""
    return Path(shutil.copytree(bundled_folder, tmp_path / "model"))


def start(folder: Path, precision: str = "mixed", **memory: Any) -> Engine:
    values = {"model": {"model": str(folder), "precision": precision}, "memory": memory}
    return Engine(Settings.model_validate(values))


def loaded(engine: Engine) -> Engine:
    wait_until(lambda: engine.state().stage in ("ready", "failed"), timeout_s=120)
    return engine


def ask(engine: Engine, text: str = "What colour is the background?") -> str:
    picture = open_picture(Image.new("RGB", (128, 128), "red"))
    request = AskRequest("chat", (Message("user", text, (picture,)),), GREEDY)
    return "".join(piece.text for piece in engine.ask(request))


def test_a_model_folder_that_vanishes_takes_nothing_from_those_who_ask(model_folder: Path) -> None:
    engine = loaded(start(model_folder))
    try:
        before = ask(engine)
        shutil.rmtree(model_folder)
        assert ask(engine) == before and before
        assert ask(engine, "How many shapes are there?")
    finally:
        engine.close()
    again = loaded(start(model_folder))
    try:
        assert again.state().stage == "failed"
        with pytest.raises(Exception, match="model") as said:
            ask(again)
        assert str(said.value).endswith(".")
    finally:
        again.close()


def damage(folder: Path, how: str) -> None:
    (weights,) = folder.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    if how == "cut off":
        weights.write_bytes(content[: len(content) // 2])
    elif how == "head":
        content[:8] = b"\xff" * 8
        weights.write_bytes(content)
    elif how == "not a number":
        content[-4000:] = b"\xff" * 4000
        weights.write_bytes(content)
    else:
        weights.write_bytes(b"")


@pytest.mark.parametrize("how", ["cut off", "head", "not a number", "empty"])
def test_damaged_weights_are_told_and_whole_ones_are_taken_when_asked_again(
    how: str, model_folder: Path, bundled_folder: Path
) -> None:
    damage(model_folder, how)
    engine = loaded(start(model_folder, "fp32"))
    try:
        state = engine.state()
        assert state.stage == "failed" and state.message.endswith(".")
        with pytest.raises(CheckpointError):
            ask(engine)
        with serving(engine) as url, httpx2.Client(base_url=url, trust_env=False) as web:
            body = {"messages": [{"role": "user", "content": "Hi"}]}
            for answer in (web.get("/health"), web.post("/v1/chat/completions", json=body)):
                assert answer.status_code == 500
                assert str(model_folder.parent) not in answer.text
                assert "Traceback" not in answer.text
        (weights,) = bundled_folder.glob("*.safetensors")
        shutil.copy(weights, model_folder)
        engine.retry_load()
        wait_until(lambda: engine.state().stage == "ready", timeout_s=120)
        assert ask(engine)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "/home/me/model is no whole model: a is cut off.",
            "model is no whole model: a is cut off.",
        ),
        (r"C:\Users\me\model is empty.", "model is empty."),
        ("~/models/qwen is empty.", "qwen is empty."),
        ("Qwen/Qwen3-VL-2B was not fetched.", "Qwen/Qwen3-VL-2B was not fetched."),
        ("See https://example.org/a/b.", "See https://example.org/a/b."),
        ("4B- and/or 8B.", "4B- and/or 8B."),
    ],
)
def test_clients_are_told_names_and_no_folders(message: str, told: str) -> None:
    assert without_folders(message) == told


def test_short_memory_first_costs_the_caches_then_the_answer() -> None:
    free, dropped = [100, 600], []

    def release() -> int:
        dropped.append(free.pop(0))
        return 500

    floor = MemoryFloor(512, release, lambda: free[0])
    floor.keep()
    assert dropped == [100]
    floor.keep()
    assert dropped == [100], "with enough memory nothing is dropped"
    free[:] = [100 * MIB, 200 * MIB]
    floor = MemoryFloor(512 * MIB, release, lambda: free[0])
    with pytest.raises(GenerationError, match="200 MiB is free and 512 MiB must stay free"):
        floor.keep()
    MemoryFloor(0, release, lambda: 0).keep()


def test_an_engine_without_memory_refuses_and_goes_on_when_there_is_some(
    bundled_folder: Path,
) -> None:
    engine = loaded(start(bundled_folder, "fp32"))
    try:
        before = ask(engine)
        generator: Any = engine._generator
        assert generator.floor._least_bytes == Settings().memory.min_free_bytes
        held = generator.caches.nbytes
        assert held
        enough = generator.floor._available_bytes
        generator.floor._available_bytes = lambda: 5 * MIB
        with pytest.raises(GenerationError, match="5.00 MiB is free .* must stay free"):
            ask(engine)
        assert generator.caches.nbytes < held
        generator.floor._available_bytes = enough
        assert ask(engine) == before
    finally:
        engine.close()


class FullDisk:
    """A file on a disk that has no room."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_at_the_upload_and_when_sent(
    fake_page: tuple[FakeEngine, str], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PageVisitor(fake_page[1]) as visitor:
        paths = visitor.upload(("red.png", png("red"))).json()
        with monkeypatch.context() as full:
            full.setattr(gradio.route_utils, "NamedTemporaryFile", FullDisk)
            refused = visitor.upload(("red.png", png("red")))
        assert refused.status_code == 507
        assert "The disk of this server is full" in refused.json()["error"]["message"]
        with monkeypatch.context() as full:
            full.setattr(Image.Image, "save", FullDisk)
            shown = visitor.send("What?", paths)
        assert shown.toasts == [
            "The disk of this machine is full, so pictures cannot be shown. Free some space and "
            "send the question again."
        ]
        assert not engine.requests
        time.sleep(1.6)  # the same again at once would be a double click
        assert visitor.send("What?", paths).answer == "A red circle."


def test_the_oldest_uploads_make_room_for_new_ones(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / str(number) / "x.png"
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    left = lambda: sorted(int(path.parent.name) for path in tmp_path.rglob("*.png"))  # noqa: E731
    assert make_room(tmp_path, 1000, 10) == 0 and len(left()) == 10
    assert make_room(tmp_path, 1000, 7) == 3 and left() == [3, 4, 5, 6, 7, 8, 9]
    assert make_room(tmp_path, 250, 7) == 5 and left() == [8, 9]
    assert make_room(tmp_path / "none", 0, 0) == 0


def test_the_recorder_of_gradio_is_closed(fake_page: tuple[FakeEngine, str]) -> None:
    address = f"{fake_page[1].rstrip('/')}/gradio_api/process_recording"
    files = {"video": ("x.mp4", b"x")}
    assert httpx2.post(address, files=files, trust_env=False).status_code == 404


@pytest.fixture
def served_on(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Start a page on a port in a process of its own, as often as wanted."""
    started: list[subprocess.Popen[bytes]] = []
    environment = os.environ | {"GRADIO_TEMP_DIR": str(tmp_path)}

    def start_one(port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "tests/page_on_port.py", str(port)]
        started.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    def is_there() -> bool:
        try:
            address = f"http://127.0.0.1:{port}/health"
            return httpx2.get(address, timeout=30, trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False

    wait_until(is_there, timeout_s=180)


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_works_again_after_its_server_was_killed_and_restarted(
    served_on: Callable[[int], subprocess.Popen[bytes]], browser: Browser, free_port: int
) -> None:
    first = served_on(free_port)
    wait_for(free_port)
    page = browser.new_context().new_page()
    tab = Tab(page, f"http://127.0.0.1:{free_port}")
    tab.load().ask("Hello?")
    expect(tab.answers).to_have_count(1)
    first.kill()
    first.wait()
    lost = page.get_by_text("Connection to the server was lost. Attempting reconnection")
    expect(lost).to_be_visible()
    served_on(free_port)
    expect(lost).to_have_count(0, timeout=180_000)  # the page loads itself anew
    expect(tab.questions).to_have_text("Hello?")
    tab.ask("Are you there?")
    expect(tab.answers).to_have_text(["A red circle."] * 2)
    page.context.close()
