"""Downloads from a hub: whole, resumed, verified, and refused in words."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_hub import COMMIT, FakeHub, serve
from huggingface_hub import close_session, constants, try_to_load_from_cache
from huggingface_hub.utils import WeakFileLock
from safetensors.torch import save

from vlm.download import Download, DownloadProgress
from vlm.errors import CheckpointError, DownloadError, ModelNotFoundError
from vlm.hub_cache import complete_snapshot
from vlm.hub_listing import list_model

NO_WAITS = (0.0, 0.0, 0.0)
WEIGHTS = save({"a": torch.arange(700_000, dtype=torch.float32)})
CONFIG = json.dumps(
    {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
).encode()
FILES = {
    "README.md": b"not needed",
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "preprocessor_config.json": b"{}",
    "chat_template.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"not needed",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that serves a small whole model, with the client online."""
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


def test_fetches_only_what_is_needed_into_the_hubs_own_layout(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[DownloadProgress] = []
    folder = fetch(hub, tmp_path, seen)
    assert folder == tmp_path / "models--Qwen--Tiny" / "snapshots" / COMMIT
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.json",
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    # The hub's own client finds it, too.
    found = try_to_load_from_cache(hub.hub_id, "model.safetensors", cache_dir=tmp_path)
    assert found == str(folder / "model.safetensors")
    assert complete_snapshot(hub.hub_id, tmp_path) == folder
    assert seen[-1].done_bytes == seen[-1].total_bytes == sum(map(len, FILES.values())) - 20
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)


def test_goes_on_after_breaks_without_fetching_a_byte_twice(hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks_after = [1_000_000, 700_000]
    folder = fetch(hub, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = weight_requests(hub)
    assert len(ranges) == 3 and ranges[0] == ""
    starts = [int(r.removeprefix("bytes=").rstrip("-")) for r in ranges[1:]]
    assert starts == [1_000_000, 1_700_000]


def test_part_survives_a_failed_start_and_the_next_one_goes_on(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.breaks_after = [1_000_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"broke \(.*\).*goes on from there"):
        fetch(hub, tmp_path)
    assert complete_snapshot(hub.hub_id, tmp_path) is None
    hub.breaks_after.clear()
    hub.requests.clear()
    folder = fetch(hub, tmp_path)
    assert weight_requests(hub) == ["bytes=1000000-"]
    assert complete_snapshot(hub.hub_id, tmp_path) == folder


def test_stop_from_progress_keeps_the_part(hub: FakeHub, tmp_path: Path) -> None:
    def stop_in_the_middle(progress: DownloadProgress) -> None:
        if progress.done_bytes > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Download(list_model(hub.hub_id), tmp_path, stop_in_the_middle).run()
    parts = list((tmp_path / "models--Qwen--Tiny" / "blobs").glob("*.part"))
    assert len(parts) == 1 and parts[0].stat().st_size > 1_000_000
    assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_server_without_ranges_and_busy_server(hub: FakeHub, tmp_path: Path) -> None:
    hub.ignores_ranges = True
    hub.statuses = [503]
    hub.breaks_after = [900_000]
    assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_damaged_content_is_fetched_again_then_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.damages = 1
    assert (fetch(hub, tmp_path / "once") / "model.safetensors").read_bytes() == WEIGHTS
    hub.damages = 2
    with pytest.raises(DownloadError, match="arrived damaged twice"):
        fetch(hub, tmp_path / "twice")
    assert complete_snapshot(hub.hub_id, tmp_path / "twice") is None


def test_wrong_leftovers_of_a_part_do_not_spoil_the_file(hub: FakeHub, tmp_path: Path) -> None:
    blobs = tmp_path / "models--Qwen--Tiny" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{hashlib.sha256(WEIGHTS).hexdigest()}.part"
    for leftover in (b"wrong", WEIGHTS + b"too long"):
        part.write_bytes(leftover)
        assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
        shutil.rmtree(tmp_path / "models--Qwen--Tiny")
        blobs.mkdir(parents=True)


def test_token_goes_to_the_hub_but_not_to_where_it_redirects(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelNotFoundError, match="HF_TOKEN"):
        list_model(hub.hub_id)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(FakeHub(dict(FILES))) as cdn:
        # Another name of this machine is another host.
        hub.moved_to = cdn.url.replace("127.0.0.1", "localhost")
        hub.breaks_after = cdn.breaks_after = [1_000_000]
        assert (fetch(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert {auth for _, _, auth in cdn.requests} == {""}
    assert [wanted for _, wanted, _ in cdn.requests] == ["", "bytes=1000000-"]


def test_unknown_model_and_model_without_safetensors(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match="has no model Qwen/Nothing"):
        list_model("Qwen/Nothing")
    del hub.files["model.safetensors"]
    with pytest.raises(ModelNotFoundError, match="no config.json with safetensors"):
        list_model(hub.hub_id)


def test_file_names_that_leave_the_folder_are_ignored(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["../config.json"] = b"evil"
    hub.files["onnx/model.safetensors"] = b"not ours"
    names = {file.name for file in list_model(hub.hub_id).files}
    assert names == set(FILES) - {"README.md", "pytorch_model.bin"}


def test_shards_are_preferred_when_an_index_names_them(hub: FakeHub) -> None:
    hub.files["model.safetensors.index.json"] = b"{}"
    hub.files["model-00001-of-00002.safetensors"] = WEIGHTS
    hub.files["model-00002-of-00002.safetensors"] = WEIGHTS
    names = [file.name for file in list_model(hub.hub_id).files if "safetensors" in file.name]
    assert "model.safetensors" not in names and len(names) == 3


def test_other_architecture_is_refused_before_its_weights_come(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.files["config.json"] = json.dumps(
        {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    ).encode()
    with pytest.raises(CheckpointError, match=r"LlavaForConditionalGeneration.*Qwen3-VL-2B"):
        fetch(hub, tmp_path)
    assert weight_requests(hub) == []


def test_too_little_disk_space_is_said_before_the_first_byte(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=201_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"needs 193 MiB more .* has 192 MiB free.*HF_HOME"):
        fetch(hub, tmp_path / "not" / "there" / "yet")
    assert weight_requests(hub) == []


def test_full_disk_in_the_middle(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DownloadError, match="is full"):
        fetch(hub, tmp_path)


def test_waits_for_another_program_that_downloads_the_same_file(
    hub: FakeHub, tmp_path: Path
) -> None:
    lock = (
        tmp_path / ".locks" / "models--Qwen--Tiny" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.lock"
    )
    lock.parent.mkdir(parents=True)
    seen: list[DownloadProgress] = []
    with WeakFileLock(lock):
        thread = threading.Thread(target=fetch, args=(hub, tmp_path, seen))
        thread.start()
        end = time.monotonic() + 10
        while not any("Another program" in p.message for p in seen):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert weight_requests(hub) == []
    thread.join(10)
    assert complete_snapshot(hub.hub_id, tmp_path) is not None


def test_hub_that_accepts_but_never_answers_is_given_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setattr("vlm.hub_listing.CONTACT_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(DownloadError, match="cannot be reached"):
            list_model(hub.hub_id, endpoint)
        assert time.monotonic() - start < 2


def test_name_lookup_that_hangs_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("vlm.hub_listing.CONTACT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(
        "vlm.hub_listing.HfApi.model_info", lambda *args, **kwargs: release.wait(10)
    )
    with pytest.raises(DownloadError, match=r"no answer within"):
        list_model(hub.hub_id)
    release.set()


def test_offline_variable_forbids_asking(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        list_model(hub.hub_id)
    assert hub.requests == []


def test_environment_variables_are_honoured_by_a_fresh_process(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.token = "hf_secret"
    code = (
        "from vlm.model_source import find_model\n"
        f"found = find_model({hub.hub_id!r}, lambda progress: None)\n"
        "print(found.path)"
    )
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))},
        "HF_HOME": str(tmp_path / "home"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": "hf_secret",
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().startswith(str(tmp_path / "home" / "hub"))
