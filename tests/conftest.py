"""What every test gets: a clean environment, no network, and the folder of the bundled model."""

import os
import socket
from pathlib import Path

# Before any import of huggingface_hub, transformers or gradio: they read these once.
os.environ.update(
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", GRADIO_ANALYTICS_ENABLED="False"
)

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
_CLEARED = ("SPACE_ID", "SPACE_HOST", "CPU_CORES", "MEMORY", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME")
_CLEARED_PREFIXES = ("GRADIO_SERVER_", "GRADIO_ROOT_PATH", "GRADIO_SHARE")


@pytest.fixture(scope="session", autouse=True)
def uploads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The one folder for uploads of the whole run: a page that runs while it changes loses them."""
    os.environ["GRADIO_TEMP_DIR"] = str(tmp_path_factory.mktemp("gradio"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away what this machine's environment could add, and point caches to an empty folder."""
    for name in list(os.environ):
        if name in _CLEARED or name.startswith(_CLEARED_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sockets reach this machine only, so that a test cannot depend on the network."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def local_connect(self: socket.socket, address: object) -> None:
        if self.family != getattr(socket, "AF_UNIX", None) and not _is_local(address):
            raise OSError(f"a test tried to reach {address!r}")
        connect(self, address)  # type: ignore[arg-type]

    def local_resolve(host: object, *args: object, **kwargs: object) -> object:
        if host is not None and not _is_local((host, 0)):
            raise socket.gaierror(f"a test tried to look up {host!r}")
        return resolve(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", local_connect)
    monkeypatch.setattr(socket, "getaddrinfo", local_resolve)


def _is_local(address: object) -> bool:
    host = address[0] if isinstance(address, tuple) else address
    text = host.decode() if isinstance(host, bytes) else str(host)
    return text in ("localhost", "::1", "0.0.0.0", "::", "") or text.startswith("127.")


@pytest.fixture(scope="session")
def bundled_folder() -> Path:
    """The folder of the bundled model: a real Qwen3-VL checkpoint of about 8M parameters."""
    folder = REPOSITORY / "vlm" / "bundled" / "model"
    if not (folder / "config.json").is_file():
        pytest.fail(f"the bundled model is missing: {folder} has no config.json")
    return folder


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
