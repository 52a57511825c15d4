"""Whole models in the hub's cache: found, preferred by name, and never half of one."""

from pathlib import Path

import pytest
from fake_hub import HUB_ID, WEIGHTS, write_cached, write_model

from vlm.errors import CheckpointError
from vlm.hub_cache import complete_snapshot, damaged_files, hub_cache_folder, shard_names
from vlm.model_source import find_model


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", WEIGHTS[:-1], "cut off or damaged"),
        ("model.safetensors", b"", "cut off or damaged"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("chat_template.json", None, "chat template is missing"),
        ("model.safetensors.index.json", b"{", "cannot be read"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../a.safetensors"}}', "outside"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "model-1-of-1.safetensors"}}',
            "model-1-of-1.safetensors is missing",
        ),
        ("config.json", b"[" * 100_000, "config.json cannot be read"),
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
        find_model(str(folder), lambda progress: None)


def test_cache_prefers_main_and_takes_another_whole_commit(tmp_path: Path) -> None:
    main = write_cached(tmp_path)
    other = write_cached(tmp_path, "f" * 40, ref=False)
    assert complete_snapshot(HUB_ID, tmp_path) == main
    (main / "config.json").unlink()
    assert complete_snapshot(HUB_ID, tmp_path) == other


def test_nothing_in_the_cache(tmp_path: Path) -> None:
    assert complete_snapshot(HUB_ID, tmp_path) is None
    (tmp_path / "models--Qwen--Tiny" / "snapshots").mkdir(parents=True)
    assert complete_snapshot(HUB_ID, tmp_path) is None
    assert hub_cache_folder().is_absolute()


def test_entries_that_lead_nowhere_do_not_hide_a_whole_model(tmp_path: Path) -> None:
    whole = write_cached(tmp_path)
    (whole.parent / "gone").symlink_to(tmp_path / "nothing")
    assert complete_snapshot(HUB_ID, tmp_path) == whole


def test_a_cache_that_may_not_be_read_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cached(tmp_path)

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert complete_snapshot(HUB_ID, tmp_path) is None


def test_shards_come_from_the_index_once_each(tmp_path: Path) -> None:
    assert shard_names(tmp_path) == ["model.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        '{"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors", '
        '"c": "model-2.safetensors"}}'
    )
    assert shard_names(tmp_path) == ["model-1.safetensors", "model-2.safetensors"]
    index.write_text('{"weight_map": {}}')
    with pytest.raises(CheckpointError, match="names no weights"):
        shard_names(tmp_path)
