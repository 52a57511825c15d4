"""The program ends soon and without a traceback, whatever its threads are doing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import REPOSITORY

from vlm.ending import within

BUSY_S = 120
"""How long the threads of these tests would go on."""
PROMPT_S = 20
"""What is taken for at once on a machine that other programs may keep busy."""

WITH_CTRL_C = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""A test runner in the background may have Ctrl-C switched off for its children."""


def start(code: str, folder: Path = REPOSITORY) -> subprocess.Popen[str]:
    """Run Python code in a process of its own that takes Ctrl-C."""
    return subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, "-c", code],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(started: subprocess.Popen[str], number: int | None = None) -> tuple[int, str, str]:
    """Send a signal; return the exit code and what was written, if the end comes at once."""
    try:
        if number is not None:
            started.send_signal(number)
        out, err = started.communicate(timeout=PROMPT_S)
        return started.returncode, out, err
    finally:
        started.kill()


def test_works_are_waited_for_side_by_side_but_not_long() -> None:
    free = threading.Event()
    done: list[int] = []
    began_s = time.monotonic()
    assert not within(0.3, lambda: free.wait(BUSY_S), lambda: done.append(1))
    assert done == [1] and time.monotonic() - began_s < PROMPT_S
    free.set()
    assert within(PROMPT_S, lambda: done.append(2))
    assert done == [1, 2]


def test_leaving_waits_for_no_thread_and_loses_no_output() -> None:
    code = (
        "import time; from concurrent.futures import ThreadPoolExecutor; from vlm import ending; "
        f"ThreadPoolExecutor().submit(time.sleep, {BUSY_S}); print('said', end=''); ending.leave(7)"
    )
    assert ended(start(code)) == (7, "said", "")


needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@needs_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_long_import_ends_the_program_silently(
    number: int, tmp_path: Path
) -> None:
    (tmp_path / "long_import.py").write_text(
        f"import time; print('importing', flush=True); time.sleep({BUSY_S})"
    )
    started = start(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import demo; "
        "demo.COMMANDS['doctor'] = 'long_import'; demo.leave(demo.main(['doctor']))"
    )
    assert started.stdout is not None and started.stdout.readline() == "importing\n"
    code, _, err = ended(started, number)
    assert (code, err) == (-number, "")


@needs_posix
def test_ctrl_c_in_a_command_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "long_run.py").write_text(
        "import time\n"
        "def add_arguments(parser): pass\n"
        f"def run(args): print('running', flush=True); time.sleep({BUSY_S})\n"
    )
    started = start(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import demo; "
        "demo.COMMANDS['doctor'] = 'long_run'; demo.leave(demo.main(['doctor']))"
    )
    assert started.stdout is not None and started.stdout.readline() == "running\n"
    code, _, err = ended(started, signal.SIGINT)
    assert (code, err) == (130, "")


BUSY_SERVER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import demo
from vlm.chat import ModelState
from vlm.ui import serve

class Busy:
    def state(self):
        return ModelState("loading", "Loading it.")
    def close(self):
        time.sleep(BUSY_S)

ThreadPoolExecutor().submit(time.sleep, BUSY_S)
serve.make_engine = lambda settings: Busy()
demo.leave(demo.main(["--port", "PORT"]))
"""


@needs_posix
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_ends_with_a_tab_open_and_a_model_that_will_not_stop_loading(
    number: int, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    code = BUSY_SERVER.replace("BUSY_S", str(BUSY_S)).replace("PORT", str(free_port))
    started = start(code)
    try:
        assert started.stdout is not None
        assert f":{free_port}" in started.stdout.readline()
        with urllib.request.urlopen(
            f"http://127.0.0.1:{free_port}/gradio_api/heartbeat/tab", timeout=60
        ) as tab:
            assert b"ALIVE" in tab.readline()
            while started.stdout.readline() != "Loading it.\n":
                assert started.poll() is None
            returned, out, err = ended(started, number)
    finally:
        started.kill()
    assert (returned, out) == (0, "\nEnding.\n")
    assert "Traceback" not in err and "Error" not in err
