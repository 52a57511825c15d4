"""--model to a folder: cache, download, folder, bundled, and what each says when it cannot."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import HUB_ID, WEIGHTS, FakeHub, online_hub, write_cached, write_model
from huggingface_hub import constants

from vlm.download import DownloadProgress
from vlm.errors import CheckpointError, DownloadError, ModelNotFoundError
from vlm.hub_cache import complete_snapshot
from vlm.model_source import BUNDLED_FOLDER, ModelFolder, find_model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub with a small whole model."""
    with online_hub(monkeypatch) as running:
        yield running


def ignore(progress: DownloadProgress) -> None:
    """Take progress and do nothing."""


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """A stand-in for the folder of the bundled model."""
    return write_model(tmp_path / "bundled")


def find_auto(cache: Path, bundled: Path, download: bool = True) -> ModelFolder:
    """Find the default model, here a tiny one."""
    return find_model(
        "auto",
        ignore,
        cache_folder=cache,
        download=download,
        bundled_folder=bundled,
        default_model=HUB_ID,
    )


def test_auto_takes_the_cache_without_asking_the_hub(
    hub: FakeHub, tmp_path: Path, bundled: Path
) -> None:
    snapshot = write_cached(tmp_path / "cache")
    found = find_auto(tmp_path / "cache", bundled)
    assert found == ModelFolder(snapshot, HUB_ID, is_bundled=False, notice="")
    assert hub.requests == []


def test_auto_downloads_and_then_finds_it(hub: FakeHub, tmp_path: Path, bundled: Path) -> None:
    found = find_auto(tmp_path / "cache", bundled)
    assert not found.is_bundled and found.notice == ""
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    asked = len(hub.requests)
    assert find_auto(tmp_path / "cache", bundled) == found
    assert len(hub.requests) == asked


def test_auto_completes_a_half_downloaded_cache(
    hub: FakeHub, tmp_path: Path, bundled: Path
) -> None:
    snapshot = write_cached(tmp_path / "cache")
    (snapshot / "model.safetensors").write_bytes(WEIGHTS[:-100])
    assert complete_snapshot(HUB_ID, tmp_path / "cache") is None
    found = find_auto(tmp_path / "cache", bundled)
    assert found.path == snapshot
    assert (snapshot / "model.safetensors").read_bytes() == WEIGHTS


def test_auto_offline_falls_to_bundled_with_the_reason(tmp_path: Path, bundled: Path) -> None:
    start = time.monotonic()
    found = find_auto(tmp_path / "cache", bundled)  # HF_HUB_OFFLINE=1, as in every test
    assert time.monotonic() - start < 2
    assert found.is_bundled and found.path == bundled
    assert "small built-in model" in found.notice and "HF_HUB_OFFLINE" in found.notice
    assert found.notice.count("--model FOLDER") == 1


def test_auto_without_network_falls_to_bundled_in_seconds(
    hub: FakeHub, tmp_path: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    found = find_auto(tmp_path / "cache", bundled)
    assert time.monotonic() - start < 6
    assert found.is_bundled and "cannot be reached" in found.notice
    assert found.notice.count(" again") == 1 and found.notice.count("--model FOLDER") == 1
    assert found.notice.count(HUB_ID.split("/")[1]) == 1


def test_auto_offline_with_half_a_cache_does_not_take_it(tmp_path: Path, bundled: Path) -> None:
    (write_cached(tmp_path / "cache") / "tokenizer.json").unlink()
    assert find_auto(tmp_path / "cache", bundled).is_bundled


def test_auto_with_downloads_switched_off(hub: FakeHub, tmp_path: Path, bundled: Path) -> None:
    found = find_auto(tmp_path / "cache", bundled, download=False)
    assert found.is_bundled and "switched off" in found.notice
    assert hub.requests == []


def test_auto_without_bundled_model_tells_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        find_auto(tmp_path / "cache", tmp_path / "none")


def test_bundled_by_name(bundled: Path, tmp_path: Path) -> None:
    found = find_model("bundled", ignore, bundled_folder=bundled)
    assert found.is_bundled and found.path == bundled and found.notice
    with pytest.raises(ModelNotFoundError, match="built-in model is missing"):
        find_model("bundled", ignore, bundled_folder=tmp_path / "none")


def test_hub_id_raises_instead_of_falling_back(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        find_model(HUB_ID, ignore, cache_folder=tmp_path)


def test_folder_by_path_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "My Model")
    found = find_model(str(folder), ignore)
    assert found == ModelFolder(folder, "My Model", is_bundled=False)
    monkeypatch.chdir(tmp_path)
    assert find_model("My Model", ignore).name == "My Model"


def test_bundled_folder_given_as_a_path_is_still_known_as_bundled(bundled_folder: Path) -> None:
    found = find_model(str(bundled_folder), ignore)
    assert found.is_bundled and found.path.samefile(BUNDLED_FOLDER)


def test_neither_folder_nor_name(tmp_path: Path) -> None:
    for wrong in (
        str(tmp_path / "none"),
        "./none",
        "gpt",
        "a/b/c",
        "?",
        "~nobody-has-this-name/x",
        "a" * 5000,
    ):
        with pytest.raises(ModelNotFoundError, match="neither a folder nor a model's name"):
            find_model(wrong, ignore)


def test_folder_without_config_and_of_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="holds no config.json"):
        find_model(str(tmp_path), ignore)
    folder = write_model(tmp_path / "moe")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen3_vl_moe",
                "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            }
        )
    )
    with pytest.raises(CheckpointError, match=r"Qwen3VLMoe.*Supported.*Mixture-of-experts"):
        find_model(str(folder), ignore)
