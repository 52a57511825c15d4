"""A batched forward over transformers' Qwen3-VL modules, for training on a CPU.

The parameters live in `Qwen3VLForConditionalGeneration`; only the loop is ours, because
the original takes pictures one after the other. A test holds both to the same logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration


@dataclass(frozen=True, eq=False)
class Pointing:
    """Where heads of the language model are taught to look.

    The last two heads of the second layer look at the words of the question that name a
    thing, the first two of the later layers at the visual tokens that show it.
    """

    shown: Tensor
    """(b, t, t) bool, by token the visual tokens that show what comes next."""
    asked: Tensor
    """(b, t, t) bool, by token before an answer the words that name what it is about."""
    weights: Tensor
    """(b, t) float, by token."""

    def in_layer(self, layer: int) -> tuple[slice, Tensor, Tensor] | None:
        """Return the heads of a layer that are taught, and where to look with what weight."""
        if layer == 0:
            return None
        if layer == 1:
            return slice(2, 4), self.asked, self.weights
        return slice(0, 2), self.shown, self.weights


class _RMSNorm(torch.autograd.Function):
    """RMSNorm with a hand-written gradient: half the passes over memory of autograd's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = scale.add_(eps).rsqrt_()
        normed: Tensor = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        product = gradient * normed
        for_weight = product.flatten(0, -2).sum(0)
        mean = (product @ weight).div_(normed.shape[-1]).unsqueeze(-1)
        for_x = (gradient * weight).addcmul_(normed, mean, value=-1.0).mul_(scale)
        return for_x, for_weight, None


def _norm(module: Any, x: Tensor) -> Tensor:
    """Apply a transformers RMSNorm module."""
    apply: Callable[[Tensor, Tensor, float], Tensor] = _RMSNorm.apply
    return apply(x, module.weight, module.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def merge_order(height: int, width: int) -> Tensor:
    """Return row and column of every patch, (2, n), in the order of 2 x 2 merged blocks."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    both = torch.stack((rows, columns)).view(2, height // 2, 2, width // 2, 2)
    return both.permute(0, 1, 3, 2, 4).reshape(2, -1)


def patches(pixels: Tensor) -> Tensor:
    """Cut (b, height, width, 3) uint8 pictures into (b, n, 1536) float patches in merge order."""
    b, height, width, _ = pixels.shape
    x = pixels.float().div_(127.5).sub_(1.0)
    x = x.view(b, height // 32, 2, 16, width // 32, 2, 16, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    x = x.reshape(b, -1, 3, 1, 256).expand(-1, -1, -1, 2, -1)
    return x.reshape(b, x.shape[1], -1)


def encode_pictures(
    model: Qwen3VLForConditionalGeneration, pixels: Tensor, blocks_train: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """Run the vision tower on (b, h, w, 3) uint8 pictures of one size.

    Only the mergers get gradients where the blocks do not train. Returns (b, visual tokens,
    width) embeddings and the deepstack features of that shape.
    """
    visual: Any = model.model.visual
    b = pixels.shape[0]
    with torch.set_grad_enabled(blocks_train and torch.is_grad_enabled()):
        seen, last = _run_blocks(visual, pixels)
    deepstack = [
        merger(x).view(b, -1, merger.linear_fc2.out_features)
        for merger, x in zip(visual.deepstack_merger_list, seen, strict=True)
    ]
    merged = visual.merger(last)
    return merged.view(b, -1, merged.shape[-1]), deepstack


def _run_blocks(visual: Any, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return what the deepstack mergers see, and the last block's output."""
    height, width = pixels.shape[1] // 16, pixels.shape[2] // 16
    weight = visual.patch_embed.proj.weight.flatten(1)
    x = F.linear(patches(pixels), weight, visual.patch_embed.proj.bias)
    place = merge_order(height, width)
    x = x + _position_table(visual, height, width, place)
    angles = place.T[:, :, None].float() * visual.rotary_pos_emb.inv_freq  # (n, 2, d/4)
    angles = angles.flatten(1).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    seen: list[Tensor] = []
    for index, block in enumerate(visual.blocks):
        x = x + _vision_attention(block.attn, block.norm1(x), cos, sin)
        x = x + block.mlp(block.norm2(x))
        if index in visual.deepstack_visual_indexes:
            seen.append(x)
    return seen, x


def _position_table(visual: Any, height: int, width: int, place: Tensor) -> Tensor:
    """Resample the square table of learned positions bilinearly, corners aligned."""
    side = visual.num_grid_per_side
    table = visual.pos_embed.weight.view(1, side, side, -1).permute(0, 3, 1, 2)
    table = F.interpolate(table, (height, width), mode="bilinear", align_corners=True)[0]
    return table[:, place[0], place[1]].T


def _vision_attention(attention: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    b, n, width = x.shape
    qkv = attention.qkv(x).view(b, n, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k = _rotate(qkv[0], cos, sin), _rotate(qkv[1], cos, sin)
    out = F.scaled_dot_product_attention(q, k, qkv[2])
    projected: Tensor = attention.proj(out.transpose(1, 2).reshape(b, n, width))
    return projected


def run_text(
    model: Qwen3VLForConditionalGeneration,
    token_ids: Tensor,
    position_ids: Tensor,
    mask: Tensor,
    embeddings: Tensor,
    deepstack: list[Tensor],
    pointing: Pointing | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the language model on packed chats.

    Args:
        token_ids: (b, t) int64; picture placeholders in picture order.
        position_ids: (3, b, t) int64.
        mask: (b, 1, t, t) bool, True where attention is allowed.
        embeddings: (visual tokens of all pictures, width); deepstack: the same shape each.
        pointing: where some heads are taught to look.
    Returns: (b, t, width) hidden states after the last norm, and how little those heads look
        there: the mean of -log of the attention it gets, summed over the layers.
    """
    text: Any = model.model.language_model
    x = text.embed_tokens(token_ids)
    visual = token_ids == model.config.image_token_id
    x = x.masked_scatter(visual[..., None], embeddings)
    rotary = text.rotary_emb
    freqs = position_ids[..., None].float() * rotary.inv_freq  # (3, b, t, d/2)
    mixed = freqs[0].clone()
    for axis in (1, 2):
        chosen = slice(axis, rotary.mrope_section[axis] * 3, 3)
        mixed[..., chosen] = freqs[axis][..., chosen]
    angles = torch.cat((mixed, mixed), dim=-1)[:, None]
    cos, sin = angles.cos(), angles.sin()
    unseen = torch.zeros(())
    for index, layer in enumerate(text.layers):
        attended, missed = _text_attention(
            layer.self_attn, _norm(layer.input_layernorm, x), cos, sin, mask,
            None if pointing is None else pointing.in_layer(index),
        )  # fmt: skip
        x = x + attended
        unseen = unseen + missed
        x = x + layer.mlp(_norm(layer.post_attention_layernorm, x))
        if index < len(deepstack):
            x = x + torch.zeros_like(x).masked_scatter(visual[..., None], deepstack[index])
    return _norm(text.norm, x), unseen


def _text_attention(
    attention: Any,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
    watched: tuple[slice, Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    b, t, _ = x.shape
    shape = (b, t, -1, attention.head_dim)
    q = _rotate(_norm(attention.q_norm, attention.q_proj(x).view(shape)).transpose(1, 2), cos, sin)
    k = _rotate(_norm(attention.k_norm, attention.k_proj(x).view(shape)).transpose(1, 2), cos, sin)
    v = attention.v_proj(x).view(shape).transpose(1, 2)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    missed = torch.zeros(())
    if watched is not None and watched[1].any():
        heads, wanted, weights = watched
        missed = _missed(q[:, heads], k[:, heads], mask, wanted, weights)
    return attention.o_proj(out.transpose(1, 2).reshape(b, t, -1)), missed


def _missed(q: Tensor, k: Tensor, mask: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of -log of the attention that q's heads give to what is wanted."""
    scores = (q @ k.transpose(-1, -2)).mul(q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~mask, float("-inf"))
    rows = wanted.any(-1)  # (b, t)
    # Other rows want nothing, and minus infinity has no gradient: they are left out first.
    chosen = scores.transpose(1, 2)[rows]  # (rows, heads, t)
    on_wanted = chosen.masked_fill(~wanted[rows][:, None], float("-inf"))
    missed = (chosen.logsumexp(-1) - on_wanted.logsumexp(-1)).mean(-1)
    return (missed * weights[rows]).sum() / weights[rows].sum()
