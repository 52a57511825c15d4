"""Stored tensors -> the weights that the decoder and the vision tower run on.

Each unit (a layer, a merger, the output head) is read, fused and packed by itself, so that
several can be packed at once and no more than that is ever held twice. A unit left on disk
keeps its place: its matrices are read back through accelerate at every use.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vlm.decoder import LayerWeights
from vlm.linear import Bf16Linear, Fp32Linear, PackedLinear, WeightKind, pack
from vlm.memory_plan import WeightUnit
from vlm.skeleton import EMBED, LM_HEAD, Skeleton
from vlm.tensor_files import TensorFiles
from vlm.vision import BlockWeights, MergerWeights, NormWeights

VISION = "model.visual"
BLOCK = f"{VISION}.blocks"
PATCH_EMBED = f"{VISION}.patch_embed.proj"
POSITIONS = f"{VISION}.pos_embed.weight"
MERGER = f"{VISION}.merger"
DEEPSTACK = f"{VISION}.deepstack_merger_list"
LANGUAGE = "model.language_model"
LAYER = f"{LANGUAGE}.layers"
LAST_NORM = f"{LANGUAGE}.norm.weight"
HEAD = LM_HEAD.removesuffix(".weight")


def weight_units(skeleton: Skeleton) -> list[WeightUnit]:
    """Group the tensors of a model into units, in the model's order; the embedding table
    is none (it stays in its file), the output head is one also where it is that table."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in {**skeleton.shapes, LM_HEAD: skeleton.shapes[EMBED]}.items():
        if name != EMBED:
            groups.setdefault(_unit_name(name), []).append(shape)
    units = []
    for name, shapes in groups.items():
        # The learned positions are added, not multiplied: they stay fp32 like the norms.
        matrices = [prod(s) for s in shapes if len(s) > 1 and name != _unit_name(POSITIONS)]
        units.append(
            WeightUnit(
                name=name,
                part="vision" if name.startswith(VISION) else "language",
                matrix_elements=sum(matrices),
                other_elements=sum(map(prod, shapes)) - sum(matrices),
                largest_matrix=max(matrices, default=0),
                can_offload=name.startswith((f"{BLOCK}.", f"{LAYER}.")),
            )
        )
    return units


def _unit_name(tensor_name: str) -> str:
    for prefix in (BLOCK, DEEPSTACK, LAYER):
        if tensor_name.startswith(f"{prefix}."):
            return f"{prefix}.{tensor_name[len(prefix) + 1 :].partition('.')[0]}"
    for prefix in (MERGER, PATCH_EMBED, HEAD):
        if tensor_name.startswith(f"{prefix}."):
            return prefix
    return tensor_name


class OffloadedLinear:
    """A linear layer whose weight stays in the checkpoint and is read at every call.

    accelerate's loader reads it, as its disk offload does for modules. Computes in fp32.
    """

    weight_bytes = 0

    def __init__(self, names: tuple[str, ...], files: TensorFiles, bias: Tensor | None) -> None:
        from accelerate.utils import OffloadedWeightsLoader

        self._names = [f"{name}.weight" for name in names]
        stored = [files.tensors[name] for name in self._names]
        self.out_features = sum(tensor.shape[0] for tensor in stored)
        self.in_features = prod(stored[0].shape[1:])
        self._bias = bias
        index = {
            name: {"safetensors_file": str(tensor.file), "weight_name": name, "dtype": "float32"}
            for name, tensor in zip(self._names, stored, strict=True)
        }
        self._loader: Any = OffloadedWeightsLoader(index=index)

    def __call__(self, x: Tensor) -> Tensor:
        """Map fp32 rows (n, in_features) to fp32 rows (n, out_features)."""
        parts = [functional.linear(x, self._loader[name].flatten(1)) for name in self._names]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return y if self._bias is None else y.add_(self._bias)


class UnitPacker:
    """Packs one unit; remembers which tensors it used."""

    def __init__(
        self,
        files: TensorFiles,
        read: Callable[[str], Tensor],
        kind: WeightKind,
        is_offloaded: bool,
    ) -> None:
        self._files = files
        self._read = read
        self._kind = kind
        self._is_offloaded = is_offloaded
        self.used: set[str] = set()

    def vector(self, name: str) -> Tensor:
        """Return a fp32 copy of a tensor that is no matrix."""
        self.used.add(name)
        # A copy in every case: a view would keep the whole file mapped.
        return self._read(name).to(torch.float32, copy=True)

    def linear(self, *names: str, has_bias: bool = False) -> PackedLinear:
        """Pack one layer, or several over the same input as one with all their rows."""
        bias = torch.cat([self.vector(f"{name}.bias") for name in names]) if has_bias else None
        self.used.update(f"{name}.weight" for name in names)
        if self._is_offloaded:
            return OffloadedLinear(names, self._files, bias)
        weights = [self._read(f"{name}.weight").flatten(1) for name in names]
        if len(weights) > 1:
            return pack(torch.cat(weights), bias, self._kind)
        packed = pack(weights[0], bias, self._kind)
        kept_dtype = {Fp32Linear: torch.float32, Bf16Linear: torch.bfloat16}.get(type(packed))
        if kept_dtype == weights[0].dtype:  # nothing was converted: still a view of the file
            packed = pack(weights[0].clone(), bias, self._kind)
        return packed

    def layer(self, name: str) -> LayerWeights:
        """Pack one decoder layer."""
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return LayerWeights(
            input_norm=self.vector(f"{name}.input_layernorm.weight"),
            qkv=self.linear(*(f"{attention}.{part}_proj" for part in "qkv")),
            q_norm=self.vector(f"{attention}.q_norm.weight"),
            k_norm=self.vector(f"{attention}.k_norm.weight"),
            o=self.linear(f"{attention}.o_proj"),
            post_norm=self.vector(f"{name}.post_attention_layernorm.weight"),
            gate_up=self.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=self.linear(f"{mlp}.down_proj"),
        )

    def block(self, name: str) -> BlockWeights:
        """Pack one vision layer."""
        return BlockWeights(
            norm1=self._norm(f"{name}.norm1"),
            qkv=self.linear(f"{name}.attn.qkv", has_bias=True),
            proj=self.linear(f"{name}.attn.proj", has_bias=True),
            norm2=self._norm(f"{name}.norm2"),
            fc1=self.linear(f"{name}.mlp.linear_fc1", has_bias=True),
            fc2=self.linear(f"{name}.mlp.linear_fc2", has_bias=True),
        )

    def merger(self, name: str) -> MergerWeights:
        """Pack one merger."""
        return MergerWeights(
            norm=self._norm(f"{name}.norm"),
            fc1=self.linear(f"{name}.linear_fc1", has_bias=True),
            fc2=self.linear(f"{name}.linear_fc2", has_bias=True),
        )

    def head(self) -> PackedLinear:
        """Pack the output head; with tied embeddings that is the embedding table."""
        is_tied = LM_HEAD not in self._files.tensors
        return self.linear(EMBED.removesuffix(".weight") if is_tied else HEAD)

    def _norm(self, name: str) -> NormWeights:
        return NormWeights(self.vector(f"{name}.weight"), self.vector(f"{name}.bias"))
