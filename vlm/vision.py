"""The vision tower's forward pass: patches of one picture to the features the decoder reads.

Equal to transformers' Qwen3VLVisionModel: patch embedding as one linear layer, a learned
position table resampled to the picture's grid, 2-D rotary attention, and mergers that turn
each merge_size x merge_size patches into one visual token, at the end and at some layers
before it (deepstack).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vlm.errors import CheckpointError
from vlm.linear import PackedLinear
from vlm.rotary import rotate
from vlm.vision_grid import Grid, GridTables, PictureTables

NORM_EPS = 1e-6
ROPE_THETA = 10_000.0
PATCHES_AT_ONCE = 1024
PAIRS_AT_ONCE = 4 * 2**20
"""Patches, or pairs of query and key, computed between two looks at `between_layers`.

Either takes about 0.1 s on two AVX2 cores, which is how long a stop may have to wait.
"""


@dataclass(frozen=True)
class VisionConfig:
    """Geometry of the vision tower, named as in this app."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    channels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    out_hidden_size: int
    position_rows: int
    """Learned positions, a square table row by row."""
    deepstack_layers: tuple[int, ...]
    """Layers after which features are taken, counted from 0, ascending."""
    rope_theta: float

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> VisionConfig:
        """Read a checkpoint's whole config.json. Raises CheckpointError."""
        vision = config.get("vision_config", config)
        act = vision.get("hidden_act", "gelu_pytorch_tanh")
        if act != "gelu_pytorch_tanh":
            raise CheckpointError(
                f"vision_config.hidden_act is {act!r}; supported is 'gelu_pytorch_tanh'. "
                "Use one of the dense Qwen3-VL Instruct models."
            )
        rope = vision.get("rope_parameters") or {}
        try:
            return cls(
                layers=vision["depth"],
                hidden_size=vision["hidden_size"],
                intermediate_size=vision["intermediate_size"],
                heads=vision["num_heads"],
                channels=vision.get("in_channels", 3),
                patch_size=vision["patch_size"],
                temporal_patch_size=vision["temporal_patch_size"],
                merge_size=vision["spatial_merge_size"],
                out_hidden_size=vision["out_hidden_size"],
                position_rows=vision["num_position_embeddings"],
                deepstack_layers=tuple(vision["deepstack_visual_indexes"]),
                rope_theta=float(rope.get("rope_theta", ROPE_THETA)),
            )
        except KeyError as missing:
            raise CheckpointError(
                f"vision_config has no {missing}; download the model's config.json again."
            ) from None

    @property
    def patch_values(self) -> int:
        """Numbers per patch: channels x frames x height x width."""
        return self.channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, eq=False)
class NormWeights:
    """Weight and bias of a LayerNorm, each (width,)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x (n, width) fp32."""
        weight, bias = self.weight.to(torch.float32), self.bias.to(torch.float32)
        return functional.layer_norm(x, weight.shape, weight, bias, NORM_EPS)


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """Weights of one vision layer."""

    norm1: NormWeights
    qkv: PackedLinear
    proj: PackedLinear
    norm2: NormWeights
    fc1: PackedLinear
    fc2: PackedLinear


@dataclass(frozen=True, eq=False)
class MergerWeights:
    """Weights of a merger; its norm is per patch for the last, per merged token for deepstack."""

    norm: NormWeights
    fc1: PackedLinear
    fc2: PackedLinear


@dataclass(frozen=True, eq=False)
class VisionWeights:
    """Weights of the vision tower; norms and positions of any float dtype."""

    patch_embed: PackedLinear
    """The Conv3d weight as (hidden_size, patch_values), and its bias."""
    positions: Tensor
    """(position_rows, hidden_size)"""
    blocks: tuple[BlockWeights, ...]
    merger: MergerWeights
    deepstack: tuple[MergerWeights, ...]
    """In the order of VisionConfig.deepstack_layers."""


@dataclass(frozen=True, eq=False)
class VisionFeatures:
    """What the decoder reads of one picture with v visual tokens."""

    embeddings: Tensor
    """(v, out_hidden_size) fp32, in place of token embeddings."""
    deepstack: tuple[Tensor, ...]
    """Each (v, out_hidden_size) fp32, added after the decoder's first layers."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.embeddings.nbytes + sum(level.nbytes for level in self.deepstack)


class VisionTower:
    """Encodes one picture at a time; keeps only tables that follow from weights and grid."""

    def __init__(self, config: VisionConfig, weights: VisionWeights) -> None:
        self.config = config
        self._weights = weights
        self._grids = GridTables(
            weights.positions,
            config.merge_size,
            head_dim=config.hidden_size // config.heads,
            rope_theta=config.rope_theta,
        )

    @property
    def inv_freq(self) -> Tensor:
        """Rotary frequencies (head_dim / 4,), for the check against transformers' own."""
        return self._grids.inv_freq

    @torch.inference_mode()
    def encode(
        self,
        pixel_values: Tensor,
        grid_thw: Grid,
        between_layers: Callable[[float], None] = lambda fraction: None,
    ) -> VisionFeatures:
        """Encode one picture: pixel_values (n, patch_values) fp32, n patches in merge order.

        between_layers is told the fraction done several times per layer and may raise
        Stopped. Raises ValueError when pixel_values and grid_thw disagree.
        """
        frames, height, width = grid_thw
        if frames != 1 or pixel_values.shape != (height * width, self.config.patch_values):
            raise ValueError(f"grid {grid_thw} does not fit patches {tuple(pixel_values.shape)}")
        tables = self._grids.tables(grid_thw)
        hidden = self._weights.patch_embed(pixel_values).add_(tables.positions)
        deepstack = []
        for i, block in enumerate(self._weights.blocks):
            look = partial(between_layers, i / self.config.layers)
            self._attend(hidden, block, tables, look)
            self._feed_forward(hidden, block, look)
            if i in self.config.deepstack_layers:
                level = self.config.deepstack_layers.index(i)
                deepstack.append(self._merge(hidden, self._weights.deepstack[level], look))
            between_layers((i + 1) / self.config.layers)
        embeddings = self._merge(hidden, self._weights.merger, partial(between_layers, 1.0))
        return VisionFeatures(embeddings, tuple(deepstack))

    def _attend(
        self, hidden: Tensor, block: BlockWeights, tables: PictureTables, look: Callable[[], None]
    ) -> None:
        """Add self-attention to hidden (n, hidden_size), in place."""
        patches, heads = hidden.shape[0], self.config.heads
        parts = []
        for rows in _cut(patches, PATCHES_AT_ONCE):
            parts.append(block.qkv(block.norm1(hidden[rows])))
            look()
        qkv = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(patches, 3 * heads, -1)
        qk = rotate(qkv[:, : 2 * heads], tables.rope)
        q, k, v = (x.transpose(0, 1)[None] for x in (*qk.chunk(2, 1), qkv[:, 2 * heads :]))
        for rows in _cut(patches, min(PATCHES_AT_ONCE, max(1, PAIRS_AT_ONCE // patches))):
            attended = functional.scaled_dot_product_attention(q[:, :, rows], k, v)[0]
            hidden[rows] += block.proj(attended.transpose(0, 1).flatten(1))
            look()

    def _feed_forward(self, hidden: Tensor, block: BlockWeights, look: Callable[[], None]) -> None:
        """Add the MLP to hidden (n, hidden_size), in place."""
        for rows in _cut(hidden.shape[0], PATCHES_AT_ONCE):
            inner = functional.gelu(block.fc1(block.norm2(hidden[rows])), approximate="tanh")
            hidden[rows] += block.fc2(inner)
            look()

    def _merge(self, hidden: Tensor, merger: MergerWeights, look: Callable[[], None]) -> Tensor:
        """Turn hidden (n, hidden_size) into (n / merge_size**2, out_hidden_size)."""
        per_token = self.config.merge_size**2
        width = self.config.hidden_size * per_token
        is_norm_merged = len(merger.norm.weight) == width
        tokens = hidden.view(-1, width)
        merged = []
        for rows in _cut(len(tokens), PATCHES_AT_ONCE // per_token):
            x = tokens[rows]
            x = merger.norm(x if is_norm_merged else x.view(-1, self.config.hidden_size))
            merged.append(merger.fc2(functional.gelu(merger.fc1(x.view(-1, width)))))
            look()
        return merged[0] if len(merged) == 1 else torch.cat(merged)


def _cut(total: int, at_once: int) -> list[slice]:
    """Cut range(total) into the fewest slices of at most at_once, about equally long."""
    pieces = max(1, -(-total // max(1, at_once)))
    bounds = [total * i // pieces for i in range(pieces + 1)]
    return [slice(start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
