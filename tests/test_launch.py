"""launch.sh: sets up once, starts at once, and says what to do when it cannot."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from conftest import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs bash")

DEMO = """
import json, os, sys
import tiny
print(json.dumps([sys.argv[1:], os.getcwd(), sys.prefix, tiny.WORD]))
"""
TOOLS = ("bash", "dirname", "cmp", "rm", "cp", "grep", "awk", "df", "uname", "id", "env", "cat")


def make_wheel(folder: Path) -> Path:
    """Make the smallest package, so that pip has something to install without a network."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "WORD = 'installed'\n")
        info = "tiny-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def make_checkout(folder: Path, requirements: str) -> Path:
    """Lay out what launch.sh touches, in a folder whose name has spaces."""
    root = folder / "a folder with spaces"
    (root / "tests").mkdir(parents=True)
    shutil.copy(REPOSITORY / "launch.sh", root)
    (root / "demo.py").write_text(DEMO)
    (root / "requirements.txt").write_text(requirements)
    (root / "tests" / "requirements.txt").write_text("# nothing\n")
    return root


def launch(
    root: Path, *args: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PIP_NO_INDEX": "1", "PYTHON": sys.executable} | environment
    inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "CHROMIUM", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(root / "launch.sh"), *args],
        cwd=cwd,
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def make_tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose environment launch.sh really made, with one real package in it."""
    folder = tmp_path_factory.mktemp("launch")
    root = make_checkout(folder, f"tiny @ {make_wheel(folder).as_uri()}\n")
    first = launch(root)
    assert first.returncode == 0, first.stderr
    assert "Making an environment" in first.stderr
    assert "Installing" in first.stderr
    return root


def test_the_second_start_installs_nothing_and_is_quick(installed: Path) -> None:
    taken_s = []
    for _ in range(3):  # the best of three, as a busy machine may slow down any one
        start_s = time.perf_counter()
        second = launch(installed)
        taken_s.append(time.perf_counter() - start_s)
        assert second.stderr == ""
        assert json.loads(second.stdout)[3] == "installed"
    assert min(taken_s) < 1.0


def test_flags_pass_through_from_any_folder(installed: Path, tmp_path: Path) -> None:
    args = ["ask", "my picture.png", "-q", "how many $HOME?", "--json"]
    done = launch(installed, *args, cwd=tmp_path)
    seen, folder, prefix, _ = json.loads(done.stdout)
    assert seen == args
    assert Path(folder) == tmp_path.resolve()  # so that picture files are found
    assert Path(prefix) == installed.resolve() / ".venv"


def test_the_exit_code_is_the_apps(installed: Path) -> None:
    (installed / "demo.py").write_text("raise SystemExit(7)")
    try:
        assert launch(installed).returncode == 7
    finally:
        (installed / "demo.py").write_text(DEMO)


def test_changed_requirements_are_installed_again(installed: Path) -> None:
    listed = installed / "requirements.txt"
    before = listed.read_text()
    listed.write_text(before + "# changed\n")
    assert "Installing" in launch(installed).stderr
    assert launch(installed).stderr == ""


def test_a_failed_install_is_tried_again_at_the_next_start(installed: Path) -> None:
    listed = installed / "requirements.txt"
    before = listed.read_text()
    listed.write_text(before + "no-such-package==9\n")
    try:
        for _ in range(2):
            failed = launch(installed)
            assert failed.returncode == 1
            assert "no build for this system" in failed.stderr
            assert failed.stdout == ""
    finally:
        listed.write_text(before)


def test_without_a_network_it_says_so(installed: Path) -> None:
    listed = installed / "requirements.txt"
    before = listed.read_text()
    listed.write_text(before + "no-such-package==9\n")
    closed = "http://127.0.0.1:9/simple"
    try:
        failed = launch(
            installed, PIP_NO_INDEX="", PIP_INDEX_URL=closed, PIP_EXTRA_INDEX_URL=closed
        )
    finally:
        listed.write_text(before)
    assert failed.returncode == 1
    assert "there is no network" in failed.stderr


def test_a_broken_environment_is_made_anew(tmp_path: Path) -> None:
    root = make_checkout(tmp_path, f"tiny @ {make_wheel(tmp_path).as_uri()}\n")
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    (root / ".venv" / ".installed-requirements").write_text((root / "requirements.txt").read_text())
    done = launch(root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[3] == "installed"


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["ask", "--help"], ["test", "-h"]])
def test_help_installs_nothing(tmp_path: Path, words: list[str]) -> None:
    root = make_checkout(tmp_path, "no-such-package==9\n")
    shown = launch(root, *words, PATH=str(bare_path(tmp_path)), PYTHON="")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "./launch.sh ask IMAGE..." in shown.stdout and "--model" in shown.stdout
    assert ("Every flag" in shown.stdout) == (words[0] != "test")
    assert not (root / ".venv").exists()


def test_once_installed_the_apps_own_help_is_shown(installed: Path) -> None:
    for words in (["--help"], ["doctor", "-h"]):
        shown = launch(installed, *words)
        assert json.loads(shown.stdout)[0] == words and shown.stderr == ""


def test_a_question_that_looks_like_a_flag_is_no_call_for_help(installed: Path) -> None:
    words = ["ask", "a.png", "-q", "-h"]
    assert json.loads(launch(installed, *words).stdout)[0] == words


# What follows needs no real environment: fake tools stand before the real ones on PATH.


def bare_path(folder: Path) -> Path:
    """A PATH with the tools every system has and nothing else: no Python, no browser."""
    path = folder / "bin"
    path.mkdir()
    for name in TOOLS:
        (path / name).symlink_to(str(shutil.which(name)))
    return path


def fake_python(version: str, has_venv: bool = True) -> str:
    return (
        f'case "$*" in *version_info*) echo {version} ;; *ensurepip*) exit {int(not has_venv)} ;;'
        " *) exit 9 ;; esac"
    )


def test_no_python_at_all(tmp_path: Path) -> None:
    failed = launch(make_checkout(tmp_path, ""), PATH=str(bare_path(tmp_path)), PYTHON="")
    assert failed.returncode == 1
    assert "no Python from 3.11 to 3.14 was found." in failed.stderr
    assert "apt-get install python3 python3-venv" in failed.stderr


def test_a_python_that_is_too_old_or_too_new_is_named(tmp_path: Path) -> None:
    path = bare_path(tmp_path)
    make_tool(path, "python3", fake_python("3.10"))
    make_tool(path, "python3.11", "exit 127")  # a version manager's stand-in for nothing
    make_tool(path, "python", fake_python("3.15"))
    failed = launch(make_checkout(tmp_path, ""), PATH=str(path), PYTHON="")
    assert failed.returncode == 1
    assert "(python3 is 3.10, python is 3.15)" in failed.stderr


def test_a_python_without_venv_gets_the_command_that_adds_it(tmp_path: Path) -> None:
    path = bare_path(tmp_path)
    make_tool(path, "python3", fake_python("3.12", has_venv=False))
    failed = launch(make_checkout(tmp_path, ""), PATH=str(path), PYTHON="")
    assert failed.returncode == 1
    assert "apt-get install python3.12-venv" in failed.stderr


def test_a_later_python_that_has_venv_is_taken(tmp_path: Path) -> None:
    path = bare_path(tmp_path)
    make_tool(path, "python3", fake_python("3.12", has_venv=False))
    make_tool(path, "python3.13", f'echo "$@" >>"{tmp_path}/asked"; {fake_python("3.13")}')
    launch(make_checkout(tmp_path, ""), PATH=str(path), PYTHON="")
    assert "-m venv --clear" in (tmp_path / "asked").read_text()


@pytest.fixture
def faked(tmp_path: Path) -> Path:
    """A checkout whose environment's Python only notes what it is asked to do."""
    root = make_checkout(tmp_path, "torch==2.13.0\n")
    make_tool(tmp_path, "note", "")
    (root / ".venv" / "bin").mkdir(parents=True)
    make_tool(
        root / ".venv" / "bin",
        "python",
        f"""
        case "$1" in -) exec "{sys.executable}" "$@" ;; esac
        printf '%s\\n' "$*" >>"{tmp_path}/calls"
        case "$*" in
          *'-c'*playwright*) exit 1 ;;
          *"-m ${{FAIL:-nothing}}"*) exit 1 ;;
        esac
        """,
    )
    return root


def calls(root: Path) -> list[str]:
    return (root.parent / "calls").read_text().splitlines()


@pytest.fixture
def torch_index() -> Iterator[str]:
    """A package index on this machine that answers for torch."""

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/cpu/torch/" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/cpu"
    server.shutdown()
    thread.join()
    server.server_close()


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has two builds")
no_gpu = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
    reason="this machine has an NVIDIA GPU",
)


@linux_only
@no_gpu
def test_without_a_gpu_the_cpu_build_of_torch_is_taken(faked: Path, torch_index: str) -> None:
    assert launch(faked, TORCH_INDEX=torch_index).returncode == 0
    (install,) = [call for call in calls(faked) if "pip install" in call]
    assert f"--extra-index-url {torch_index} -r" in install


@linux_only
@no_gpu
def test_an_index_that_cannot_be_reached_is_left_out(faked: Path) -> None:
    assert launch(faked, TORCH_INDEX="http://127.0.0.1:9/cpu").returncode == 0
    (install,) = [call for call in calls(faked) if "pip install" in call]
    assert "--extra-index-url" not in install


@linux_only
def test_with_a_gpu_the_usual_build_is_taken(faked: Path, torch_index: str) -> None:
    fakes = faked.parent / "fakes"
    make_tool(fakes, "nvidia-smi", "echo GPU 0")
    make_tool(fakes, "df", "printf 'head\\nfs 1 1 99999999 1%% /\\n'")
    path = f"{fakes}:{os.environ['PATH']}"
    assert launch(faked, TORCH_INDEX=torch_index, PATH=path).returncode == 0
    (install,) = [call for call in calls(faked) if "pip install" in call]
    assert "--extra-index-url" not in install


def test_a_full_disk_is_told_before_anything_is_fetched(faked: Path) -> None:
    fakes = faked.parent / "fakes"
    make_tool(fakes, "df", "printf 'head\\nfs 1 1 1048576 99%% /\\n'")
    failed = launch(faked, PATH=f"{fakes}:{os.environ['PATH']}", TORCH_INDEX="http://127.0.0.1:9")
    assert failed.returncode == 1
    assert "MiB of free disk" in failed.stderr
    assert "has 1024 MiB" in failed.stderr
    assert not any("pip" in call for call in calls(faked))


@pytest.fixture
def tested(faked: Path) -> Path:
    """Like `faked`, with everything installed and a browser that starts."""
    venv = faked / ".venv"
    shutil.copy(faked / "requirements.txt", venv / ".installed-requirements")
    make_tool(faked.parent / "fakes", "chromium", "echo Chromium 1")
    return faked


def test_test_runs_every_check_and_hands_on_pytests_arguments(tested: Path) -> None:
    path = f"{tested.parent / 'fakes'}:{os.environ['PATH']}"
    done = launch(tested, "test", "-k", "one or two", PATH=path)
    assert done.returncode == 0, done.stderr
    checks = [call for call in calls(tested) if call.startswith("-m") and "pip" not in call]
    assert checks == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy",
        "-m pytest -k one or two",
    ]
    assert any("tests/requirements.txt" in call for call in calls(tested))


@pytest.mark.parametrize("check", ["ruff check", "ruff format", "mypy", "pytest"])
def test_one_failed_check_fails_all_but_hides_none(tested: Path, check: str) -> None:
    path = f"{tested.parent / 'fakes'}:{os.environ['PATH']}"
    failed = launch(tested, "test", PATH=path, FAIL=check)
    assert failed.returncode == 1
    assert f"failed: {check.replace(' ', '-')}" in failed.stderr
    assert any(call.startswith("-m pytest") for call in calls(tested))


def test_a_missing_browser_is_a_failure_in_ci_and_a_notice_elsewhere(tested: Path) -> None:
    (tested.parent / "fakes" / "chromium").unlink()
    path = str(bare_path(tested.parent))
    failed = launch(tested, "test", PATH=path, CI="true")
    assert failed.returncode == 1
    assert "in CI that is a failure" in failed.stderr
    assert "-m playwright install chromium" in calls(tested)
    assert not any(call.startswith("-m pytest") for call in calls(tested))
    skipped = launch(tested, "test", PATH=path)
    assert skipped.returncode == 0
    assert "browser tests are skipped" in skipped.stderr


@pytest.mark.skipif(
    not Path("/etc/os-release").is_file() or "ID=ubuntu" in Path("/etc/os-release").read_text(),
    reason="Ubuntu's package is a stand-in for a snap",
)
def test_debians_chromium_is_installed_where_apt_may_run(tested: Path) -> None:
    fakes = tested.parent / "fakes"
    (fakes / "chromium").rename(fakes / "ready")
    path = bare_path(tested.parent)
    make_tool(path, "id", "echo 0")
    make_tool(
        path, "apt-get", f'echo "apt-get $*" >>"{fakes}/apt"; cp "{fakes}/ready" "{path}/chromium"'
    )
    done = launch(tested, "test", PATH=str(path), CI="true")
    assert done.returncode == 0, done.stderr
    assert "install -qy --no-install-recommends chromium" in (fakes / "apt").read_text()


def test_the_scripts_are_clean() -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck, "tests/requirements.txt brings shellcheck"
    scripts = [REPOSITORY / "launch.sh", REPOSITORY / ".ci" / "run"]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert all(os.access(script, os.X_OK) for script in scripts)
