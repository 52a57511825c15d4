"""--model to a folder: cache, download, folder, bundled, and what each says when it cannot."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_hub import COMMIT, FakeHub, serve
from huggingface_hub import close_session, constants
from safetensors.torch import save

from vlm.download import DownloadProgress
from vlm.errors import CheckpointError, DownloadError, ModelNotFoundError
from vlm.hub_cache import complete_snapshot, damaged_files
from vlm.model_source import BUNDLED_FOLDER, ModelFolder, find_model, is_present

CONFIG = json.dumps(
    {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
)
WEIGHTS = save({"a": torch.arange(1000, dtype=torch.float32)})
FILES = {
    "config.json": CONFIG.encode(),
    "tokenizer.json": b"{}",
    "preprocessor_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
HUB_ID = "Qwen/Tiny"


def ignore(progress: DownloadProgress) -> None:
    """Take progress and do nothing."""


def write_model(folder: Path) -> Path:
    """Write a small whole model."""
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def write_cached(cache: Path, commit: str = COMMIT, ref: bool = True) -> Path:
    """Write a whole model into a hub cache."""
    storage = cache / "models--Qwen--Tiny"
    if ref:
        (storage / "refs").mkdir(parents=True, exist_ok=True)
        (storage / "refs" / "main").write_text(commit)
    return write_model(storage / "snapshots" / commit)


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """A stand-in for the folder of the bundled model."""
    return write_model(tmp_path / "bundled")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub, with the client online."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()
    with serve(FakeHub(dict(FILES))) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running
    close_session()


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


def test_auto_without_network_falls_to_bundled_in_seconds(
    hub: FakeHub, tmp_path: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    found = find_auto(tmp_path / "cache", bundled)
    assert time.monotonic() - start < 6
    assert found.is_bundled and "cannot be reached" in found.notice


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
    for wrong in (str(tmp_path / "none"), "./none", "gpt", "a/b/c", "?"):
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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", WEIGHTS[:-1], "cut off or damaged"),
        ("model.safetensors", b"", "cut off or damaged"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("chat_template.jinja", None, "chat template is missing"),
        ("model.safetensors.index.json", b"{", "cannot be read"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../a.safetensors"}}', "outside"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "model-1-of-1.safetensors"}}',
            "model-1-of-1.safetensors is missing",
        ),
    ],
)
def test_damaged_folder_is_refused_by_the_file(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    folder = write_model(tmp_path / "model")
    assert damaged_files(folder) == []
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        find_model(str(folder), ignore)


def test_cache_prefers_main_and_takes_another_whole_commit(tmp_path: Path) -> None:
    main = write_cached(tmp_path)
    other = write_cached(tmp_path, "f" * 40, ref=False)
    assert complete_snapshot(HUB_ID, tmp_path) == main
    (main / "config.json").unlink()
    assert complete_snapshot(HUB_ID, tmp_path) == other


def test_is_present(tmp_path: Path) -> None:
    assert is_present("bundled") and is_present(str(tmp_path))
    assert not is_present(HUB_ID, tmp_path)
    write_cached(tmp_path)
    assert is_present(HUB_ID, tmp_path)
    assert not is_present("auto", tmp_path)
