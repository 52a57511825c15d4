"""Starting weights from which a vision tower learns from few pictures."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration


@torch.no_grad()
def prepare_weights(model: Qwen3VLForConditionalGeneration, seed: int) -> None:
    """Give the fresh model a start from which a ViT learns from few pictures.

    The patch embedding starts as a whitened cosine transform (64 low frequencies of
    luminance and of two colour differences), and each vision head starts by looking at one
    neighbouring patch, through its q and k biases and the rotary angles: a convolution.
    Idea of convolution-like starts: d'Ascoli et al., ConViT, 2021.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            std = module.in_features**-0.5
            module.weight.normal_(0.0, std, generator=generator)
    model.model.language_model.embed_tokens.weight.normal_(0.0, 0.04, generator=generator)
    model.tie_weights()
    visual: Any = model.model.visual
    visual.patch_embed.proj.weight.copy_(_cosine_filters().view_as(visual.patch_embed.proj.weight))
    visual.patch_embed.proj.bias.zero_()
    visual.pos_embed.weight.copy_(0.3 * _wave_table(visual.num_grid_per_side, 192))
    depth = len(visual.blocks)
    for index, block in enumerate(visual.blocks):
        block.attn.proj.weight.mul_(0.7 / math.sqrt(depth))
        block.mlp.linear_fc2.weight.mul_(0.7 / math.sqrt(depth))
        block.attn.qkv.weight[: 2 * 192].mul_(0.3)
        _look_at_neighbours(block.attn, index, visual.rotary_pos_emb.inv_freq)
    layers: Any = model.model.language_model.layers
    for layer in layers:
        layer.self_attn.o_proj.weight.mul_(0.7 / math.sqrt(len(layers)))
        layer.mlp.down_proj.weight.mul_(0.7 / math.sqrt(len(layers)))
    for merger in (visual.merger, *visual.deepstack_merger_list):
        merger.linear_fc2.weight.mul_(0.1)


def _cosine_filters() -> Tensor:
    """Return (192, 3, 2, 16, 16) filters: 8 x 8 low cosine frequencies for three colour axes."""
    n = torch.arange(16) + 0.5
    waves = torch.stack([torch.cos(math.pi * k * n / 16) for k in range(8)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    axes = torch.tensor([[0.58, 0.58, 0.58], [0.71, 0.0, -0.71], [0.41, -0.82, 0.41]])
    filters = torch.einsum("ac,ih,jw->aijchw", axes, waves, waves).reshape(192, 3, 16, 16)
    frequency = torch.arange(8)[:, None] + torch.arange(8)[None, :]
    gain = (0.12 * (1.0 + frequency)).flatten().repeat(3)
    return (filters * gain[:, None, None, None] / 2)[:, :, None].expand(-1, -1, 2, -1, -1)


def _wave_table(side: int, width: int) -> Tensor:
    """Return (side * side, width) sines and cosines of row and column."""
    place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    scale = math.pi * 2.0 ** torch.linspace(-1, 3, width // 4) / side
    angles = place.reshape(2, -1).T[:, :, None] * scale
    return torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(1)


_NEIGHBOURS = (
    ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0), None),
    ((-1, -1), (-1, 1), (1, -1), (1, 1), (0, 0), None),
    ((0, -2), (0, 2), (-2, 0), (2, 0), None, None),
)


def _look_at_neighbours(attention: Any, index: int, inv_freq: Tensor) -> None:
    heads, head_dim = attention.num_heads, attention.head_dim
    bias = attention.qkv.bias.view(3, heads, head_dim)
    bias.zero_()
    quarter, half = head_dim // 4, head_dim // 2
    for head, offset in enumerate(_NEIGHBOURS[index % 3][:heads]):
        if offset is None:
            continue
        for axis, distance in enumerate(offset):
            for j in range(2):  # the two highest frequencies tell neighbours apart
                strength, angle = 5.5, float(inv_freq[j]) * distance
                pair = axis * quarter + j
                bias[1, head, pair] = strength
                bias[0, head, pair] = strength * math.cos(angle)
                bias[0, head, pair + half] = strength * math.sin(angle)
