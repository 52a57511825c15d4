"""A checkpoint's tensors: one list over all shards, accounted for, read as views."""

import json
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoint import write_checkpoint

from vlm.errors import CheckpointError
from vlm.skeleton import build_skeleton
from vlm.tensor_files import TensorFiles


def test_one_list_over_all_shards(tmp_path: Path, bundled_folder: Path) -> None:
    whole = TensorFiles(write_checkpoint(tmp_path / "one", bundled_folder))
    several = TensorFiles(
        write_checkpoint(tmp_path / "several", bundled_folder, shard_size="100KB")
    )
    assert whole.tensors.keys() == several.tensors.keys()
    assert len({tensor.file for tensor in several.tensors.values()}) > 3
    for name, tensor in whole.tensors.items():
        assert (tensor.shape, tensor.nbytes) == (
            several.tensors[name].shape,
            several.tensors[name].nbytes,
        )
    names = list(several.tensors)
    with whole.reading(names) as read_whole, several.reading(names) as read_several:
        assert all(torch.equal(read_whole(name), read_several(name)) for name in names)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    files = ["model-1.safetensors", "model-2.safetensors"]
    for file in files:
        save_file({"a": torch.zeros(2), file[:7]: torch.zeros(1)}, tmp_path / file)
    index = {"weight_map": {"a": files[0], "model-1": files[0], "model-2": files[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="both hold a"):
        TensorFiles(tmp_path)


def test_long_lists_are_cut_but_counted(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    skeleton = build_skeleton(folder)
    save_file({"nothing.weight": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        TensorFiles(folder).account(skeleton)
    lines = str(error.value).splitlines()
    assert lines[1].startswith(f"- {len(skeleton.shapes)} missing: model.language_model.")
    assert lines[1].endswith(f"and {len(skeleton.shapes) - 12} more")
    assert lines[2] == "- 1 unexpected: nothing.weight"


def test_mapped_tensor_lives_after_its_files_are_closed(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    name = "model.language_model.embed_tokens.weight"
    table = TensorFiles(folder).mapped(name)
    assert table.shape == (1000, 64) and table.dtype == torch.bfloat16
    assert table.float().std() > 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="tells what is in memory by /proc")
def test_mapped_tensor_is_in_memory_only_where_it_is_used(tmp_path: Path) -> None:
    table = torch.ones(8192, 1024)
    save_file({"table": table, "other": torch.ones(1)}, tmp_path / "model.safetensors")
    mapped = TensorFiles(tmp_path).mapped("table")
    (entry,) = [m for m in psutil.Process().memory_maps() if str(tmp_path) in m.path]
    assert entry.rss < table.nbytes / 4
    assert float(mapped.sum()) == table.numel()
