"""Units of a model: every weight in exactly one, and layers on disk that compute the same."""

from math import prod
from pathlib import Path

import torch
from safetensors.torch import load_file
from tiny_checkpoint import write_checkpoint
from torch.nn import functional

from vlm.linear import pack
from vlm.packing import BLOCK, HEAD, LAYER, OffloadedLinear, UnitPacker, weight_units
from vlm.skeleton import EMBED, build_skeleton
from vlm.tensor_files import TensorFiles


def test_every_weight_is_in_one_unit(tmp_path: Path, bundled_folder: Path) -> None:
    for is_tied in (True, False):
        folder = write_checkpoint(tmp_path / f"{is_tied}", bundled_folder, is_tied=is_tied)
        skeleton = build_skeleton(folder)
        units = weight_units(skeleton)
        assert len({unit.name for unit in units}) == len(units)
        table = prod(skeleton.shapes[EMBED])
        head = next(unit for unit in units if unit.name == HEAD)
        assert head.matrix_elements == table and not head.can_offload
        # Tied: the head is the table. Untied: the table is no unit, it stays in its file.
        total = sum(unit.matrix_elements + unit.other_elements for unit in units)
        assert total == skeleton.parameters - (0 if is_tied else table)
        layers = [unit for unit in units if unit.can_offload]
        assert [unit.name for unit in layers if unit.part == "vision"] == [
            f"{BLOCK}.{i}" for i in range(4)
        ]
        assert [unit.name for unit in layers if unit.part == "language"] == [
            f"{LAYER}.{i}" for i in range(3)
        ]


def test_offloaded_layer_computes_what_the_packed_one_does(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    files = TensorFiles(folder)
    tensors = load_file(folder / "model.safetensors")
    names = tuple(f"{LAYER}.0.self_attn.{part}_proj" for part in "qkv")
    weight = torch.cat([tensors[f"{name}.weight"] for name in names])
    bias = torch.randn(weight.shape[0])
    offloaded = OffloadedLinear(names, files, bias)
    packed = pack(weight, bias, "fp32")
    x = torch.randn(5, weight.shape[1])
    torch.testing.assert_close(offloaded(x), packed(x))
    assert (offloaded.out_features, offloaded.in_features) == tuple(weight.shape)
    assert offloaded.weight_bytes == 0


def test_patch_embedding_is_one_linear_layer(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    files = TensorFiles(folder)
    name = "model.visual.patch_embed.proj"
    with files.reading([f"{name}.weight", f"{name}.bias"]) as read:
        packer = UnitPacker(files, read, "fp32", is_offloaded=False)
        layer = packer.linear(name, has_bias=True)
        weight, bias = read(f"{name}.weight").float(), read(f"{name}.bias").float()
        patch = torch.randn(1, *weight.shape[1:])
        expected = functional.conv3d(patch, weight, bias, stride=weight.shape[2:])
    torch.testing.assert_close(layer(patch.flatten(1)), expected.flatten(1))
    assert packer.used == {f"{name}.weight", f"{name}.bias"}
