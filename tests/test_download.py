"""Downloads into the cache: whole, in the hub's own layout, with room and without a rival."""

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
from fake_hub import COMMIT, NEEDED, WEIGHTS, FakeHub, fetch, online_hub, weight_requests
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.utils import WeakFileLock

from vlm.download import DownloadProgress, Speed
from vlm.errors import CheckpointError, DownloadError
from vlm.hub_cache import complete_snapshot


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub with a small whole model."""
    with online_hub(monkeypatch) as running:
        yield running


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
    assert seen[-1].done_bytes == seen[-1].total_bytes == sum(map(len, NEEDED.values()))
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)


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


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    assert speed.add(0.0, 1000) == 0.0 == speed.add(0.3, 1300)
    assert speed.add(1.0, 2000) == pytest.approx(1000)
    for second in range(2, 30):
        speed.add(float(second), 2000 + 10 * second)
    assert speed.add(30.0, 2300) == pytest.approx(10)
    speed.restart()
    assert speed.add(31.0, 9000) == 0.0
