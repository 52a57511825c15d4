"""A tiny hub on 127.0.0.1 that speaks the few endpoints a download needs."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants
from safetensors.torch import save

from vlm.download import Download, DownloadProgress
from vlm.hub_listing import list_model

HUB_ID = "Qwen/Tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
WEIGHTS = save({"a": torch.arange(700_000, dtype=torch.float32)})
NEEDED = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "preprocessor_config.json": b"{}",
    "chat_template.json": b"{}",
    "model.safetensors": WEIGHTS,
}
"""The files of a whole model; its weights are enough to be cut in several places."""
FILES = {"README.md": b"not needed", **NEEDED, "pytorch_model.bin": b"not needed"}
NO_WAITS = (0.0, 0.0, 0.0)


@dataclass
class FakeHub:
    """What the hub serves and how it misbehaves; tests change it between requests."""

    files: dict[str, bytes]
    hub_id: str = HUB_ID
    token: str = ""
    breaks_after: list[int] = field(default_factory=list)
    """Bytes after which the next answers with weights are cut, one entry each."""
    statuses: list[int] = field(default_factory=list)
    """HTTP statuses of the next answers with weights instead of their content."""
    ignores_ranges: bool = False
    damages: int = 0
    """How many of the next answers with weights have a wrong byte."""
    goes_on_for: int = 0
    """Bytes that follow the weights although the file ends there."""
    went_on_for: int = 0
    """How many of them the other side took, or the network on its way there."""
    moved_to: str = ""
    """Another address that weights are fetched from, as with a CDN."""
    url: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(path, Range, Authorization) of every request."""

    def listing(self) -> dict[str, object]:
        """The answer to api/models/ID?blobs=true."""
        siblings = []
        for name, content in self.files.items():
            sibling: dict[str, object] = {"rfilename": name, "size": len(content)}
            sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if name.endswith(".safetensors"):
                sha256 = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        return {"id": self.hub_id, "sha": COMMIT, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""

    def do_GET(self) -> None:
        hub = self.hub
        auth = self.headers.get("Authorization", "")
        self.hub.requests.append((self.path, self.headers.get("Range", ""), auth))
        if hub.token and auth != f"Bearer {hub.token}":
            return self._answer(401, b"Invalid username or password.")
        path = self.path.split("?")[0]
        if path == f"/api/models/{hub.hub_id}":
            return self._answer(200, json.dumps(hub.listing()).encode())
        name = path.rpartition("/")[2]
        if path != f"/{hub.hub_id}/resolve/{COMMIT}/{name}" or name not in hub.files:
            return self._answer(404, b"Not found", {"X-Error-Code": "RepoNotFound"})
        if name.endswith(".safetensors"):
            return self._weights(name)
        return self._answer(200, hub.files[name])

    def _weights(self, name: str) -> None:
        hub = self.hub
        if hub.moved_to:
            return self._answer(302, b"", {"Location": hub.moved_to + self.path})
        if hub.statuses:
            return self._answer(hub.statuses.pop(0), b"no")
        content = hub.files[name]
        if hub.damages:
            hub.damages -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = 0
        if (wanted := self.headers.get("Range")) and not hub.ignores_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        body = content[start:]
        self.send_response(206 if start else 200)
        if not hub.goes_on_for:
            self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if hub.breaks_after:
            body = body[: hub.breaks_after.pop(0)]
            self.close_connection = True
        self.wfile.write(body)
        if hub.goes_on_for:
            self._go_on()

    def _go_on(self) -> None:
        self.close_connection = True
        try:
            while self.hub.went_on_for < self.hub.goes_on_for:
                self.wfile.write(bytes(1 << 16))
                self.hub.went_on_for += 1 << 16
        except OSError:  # the other side has what it wanted
            pass

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub until the block ends; its address is `hub.url`."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def online_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Run a hub with a small whole model, and let this process be online and ask it."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()
    with serve(FakeHub(dict(FILES))) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running
    close_session()


def fetch(hub: FakeHub, cache: Path, seen: list[DownloadProgress] | None = None) -> Path:
    """Download the hub's model with retries that do not wait."""
    collect = (seen if seen is not None else []).append
    return Download(list_model(hub.hub_id), cache, collect, retry_waits_s=NO_WAITS).run()


def weight_requests(hub: FakeHub) -> list[str]:
    """The Range headers of all requests for weights."""
    return [wanted for path, wanted, _ in hub.requests if path.endswith("model.safetensors")]


def write_model(folder: Path) -> Path:
    """Write a small whole model."""
    folder.mkdir(parents=True)
    for name, content in NEEDED.items():
        (folder / name).write_bytes(content)
    return folder


def write_cached(cache: Path, commit: str = COMMIT, ref: bool = True) -> Path:
    """Write a whole model into a hub cache."""
    storage = cache / "models--Qwen--Tiny"
    if ref:
        (storage / "refs").mkdir(parents=True, exist_ok=True)
        (storage / "refs" / "main").write_text(commit)
    return write_model(storage / "snapshots" / commit)
