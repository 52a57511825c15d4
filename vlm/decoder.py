"""The text decoder's forward pass, lean, over packed weights and a preallocated cache.

Equal to transformers' Qwen3VLTextModel: grouped-query attention with per-head RMSNorm of
queries and keys, interleaved M-RoPE, SwiGLU, and deepstack features of pictures added after
the first layers. Nothing about a conversation is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vlm.decoder_config import DecoderConfig
from vlm.fused_layer import MOST_ROWS, compiled_layer, fusable
from vlm.kv_cache import KVCache
from vlm.linear import PackedLinear
from vlm.rotary import rope_tables, rotate


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Weights of one decoder layer; norm weights are 1-D tensors of any float dtype."""

    input_norm: Tensor
    """(hidden_size,) input_layernorm."""
    qkv: PackedLinear
    """Rows of q_proj, then k_proj, then v_proj."""
    q_norm: Tensor
    """(head_dim,)"""
    k_norm: Tensor
    """(head_dim,)"""
    o: PackedLinear
    post_norm: Tensor
    """(hidden_size,) post_attention_layernorm."""
    gate_up: PackedLinear
    """Rows of gate_proj, then up_proj."""
    down: PackedLinear


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """Weights of the text decoder."""

    embed: Tensor
    """(vocab_size, hidden_size) of any float dtype, memory-mapped or not."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    """(hidden_size,) the last norm."""
    lm_head: PackedLinear
    """With tied embeddings: the embedding table, packed."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Neighbouring rows of a batch that belong to one conversation."""

    kv_cache: KVCache
    rows: int


class Decoder:
    """Runs the decoder layers for the new tokens of one conversation, or of several."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights) -> None:
        self.config = config
        self._embed = weights.embed
        self._lm_head = weights.lm_head
        self._norm = weights.norm.to(torch.float32)
        self._layers = [_Layer(config, layer) for layer in weights.layers]
        self._rope = MRope(config)
        self._eps = torch.tensor(config.rms_norm_eps)

    @property
    def inv_freq(self) -> Tensor:
        """Rotary frequencies (head_dim / 2,) in use; no checkpoint holds them."""
        return self._rope.inv_freq

    def new_cache(self) -> KVCache:
        """Return an empty cache of this decoder's geometry."""
        return KVCache(self.config.layers, self.config.kv_heads, self.config.head_dim)

    @torch.no_grad()  # not inference mode: callers write picture features into the rows
    def embed(self, token_ids: Sequence[int] | Tensor) -> Tensor:
        """Return the fp32 embeddings (n, hidden_size) of n token ids."""
        ids = torch.as_tensor(token_ids, dtype=torch.int64)
        return self._embed.index_select(0, ids).to(torch.float32)

    @torch.inference_mode()
    def forward(
        self,
        hidden: Tensor,
        position_ids: Tensor,
        kv_cache: KVCache,
        deepstack: Sequence[Tensor] = (),
        visual_index: Tensor | None = None,
        between_layers: Callable[[float], None] | None = None,
    ) -> Tensor:
        """Run new tokens after those in the cache, and add them to it.

        hidden: (n, hidden_size) fp32, embeddings of the new tokens, those of pictures
        replaced by vision features; left unchanged. position_ids: (3, n). deepstack: per
        vision level (v, hidden_size), added after layers 0, 1, ... to the v rows of hidden
        named by visual_index (v,). Returns (n, hidden_size), before the last norm.

        between_layers is told the fraction done and may raise Stopped; then the cache must
        be truncated to its length before this call.
        """
        segments = [Segment(kv_cache, hidden.shape[0])]
        return self._run(hidden, position_ids, segments, deepstack, visual_index, between_layers)

    @torch.inference_mode()
    def forward_together(
        self,
        hidden: Tensor,
        position_ids: Tensor,
        segments: Sequence[Segment],
        between_layers: Callable[[float], None] | None = None,
    ) -> Tensor:
        """Run new tokens of several conversations: the weights are read once for all.

        hidden: (n, hidden_size) fp32, the rows of the segments one after the other;
        position_ids: (3, n). Otherwise as `forward`.
        """
        return self._run(hidden, position_ids, segments, (), None, between_layers)

    def _run(
        self,
        hidden: Tensor,
        position_ids: Tensor,
        segments: Sequence[Segment],
        deepstack: Sequence[Tensor],
        visual_index: Tensor | None,
        between_layers: Callable[[float], None] | None,
    ) -> Tensor:
        rope = self._rope.tables(position_ids)
        masks = [_causal_mask(s.rows, s.kv_cache.length) for s in segments]
        for segment in segments:
            segment.kv_cache.reserve(segment.kv_cache.length + segment.rows)
        is_short = hidden.shape[0] <= MOST_ROWS and visual_index is None
        for i, layer in enumerate(self._layers):
            if is_short and layer.is_fusable:
                hidden = layer.run_fused(hidden, rope, segments, masks, i)
                if between_layers is not None:
                    between_layers((i + 1) / len(self._layers))
                continue
            hidden = hidden + layer.attend(
                rms_norm(hidden, layer.input_norm, self._eps), rope, segments, masks, i
            )
            if between_layers is not None:
                between_layers((i + 0.5) / len(self._layers))
            hidden += layer.feed_forward(rms_norm(hidden, layer.post_norm, self._eps))
            if visual_index is not None and i < len(deepstack):
                hidden.index_add_(0, visual_index, deepstack[i])
            if between_layers is not None:
                between_layers((i + 1) / len(self._layers))
        return hidden

    @torch.inference_mode()
    def logits(self, hidden_rows: Tensor) -> Tensor:
        """Return the fp32 logits (rows, vocab_size) of rows that `forward` returned."""
        return self._lm_head(rms_norm(hidden_rows, self._norm, self._eps))


class _Layer:
    """One decoder layer: its weights in the shapes the forward pass wants."""

    def __init__(self, config: DecoderConfig, weights: LayerWeights) -> None:
        self._heads, self._kv_heads = config.heads, config.kv_heads
        self._qkv, self._o = weights.qkv, weights.o
        self._gate_up, self._down = weights.gate_up, weights.down
        self._eps = torch.tensor(config.rms_norm_eps)
        self.input_norm = weights.input_norm.to(torch.float32)
        self.post_norm = weights.post_norm.to(torch.float32)
        # One norm and one rotation serve queries and keys, so their weights are side by side.
        self._qk_norm = torch.cat(
            (
                weights.q_norm.to(torch.float32).expand(config.heads, -1),
                weights.k_norm.to(torch.float32).expand(config.kv_heads, -1),
            )
        )

        self._packed = fusable((self._qkv, self._o, self._gate_up, self._down))

    @property
    def is_fusable(self) -> bool:
        """Whether few rows can go through `run_fused`."""
        return self._packed is not None

    def run_fused(
        self,
        hidden: Tensor,
        rope: tuple[Tensor, Tensor],
        segments: Sequence[Segment],
        masks: Sequence[Tensor | None],
        layer: int,
    ) -> Tensor:
        """Do all of the layer for a few rows hidden (n, hidden_size) in one compiled call."""
        run = compiled_layer()
        assert run is not None and self._packed is not None
        places = [segment.kv_cache.place(layer, segment.rows) for segment in segments]
        return run(
            hidden,
            (self.input_norm, self.post_norm, self._qk_norm),
            self._eps,
            rope=rope,
            heads=self._heads,
            keys=[keys for keys, _, _ in places],
            values=[values for _, values, _ in places],
            starts=[start for _, _, start in places],
            rows=[segment.rows for segment in segments],
            masks=masks,
            **self._packed,
        )

    def attend(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        segments: Sequence[Segment],
        masks: Sequence[Tensor | None],
        layer: int,
    ) -> Tensor:
        """Attend from normed rows x (n, hidden_size), each to its own cache and segment."""
        rotated = self._heads + self._kv_heads
        qkv = self._qkv(x).view(x.shape[0], rotated + self._kv_heads, -1)
        qk = rotate(rms_norm(qkv[:, :rotated], self._qk_norm, self._eps), rope)
        q, k = qk[:, : self._heads].transpose(0, 1), qk[:, self._heads :].transpose(0, 1)
        v = qkv[:, rotated:].transpose(0, 1)
        attended, first = [], 0
        for segment, mask in zip(segments, masks, strict=True):
            rows = slice(first, first + segment.rows)
            keys, values = segment.kv_cache.append(layer, k[:, rows], v[:, rows])
            attended.append(_attend(q[:, rows], keys, values, mask))
            first += segment.rows
        return self._o(attended[0] if len(attended) == 1 else torch.cat(attended))

    def feed_forward(self, x: Tensor) -> Tensor:
        """SwiGLU of normed rows x (n, hidden_size)."""
        gate, up = self._gate_up(x).chunk(2, 1)
        return self._down(functional.silu(gate).mul_(up))


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attend from q (heads, rows, head_dim) to the cache; return (rows, heads * head_dim)."""
    attended = functional.scaled_dot_product_attention(
        q[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None and q.shape[1] > 1,
        enable_gqa=True,  # the CPU kernel reads each key once per group, without copies
    )
    return attended[0].transpose(0, 1).reshape(q.shape[1], -1)


class MRope:
    """Rotary tables for three position axes whose frequencies are interleaved."""

    def __init__(self, config: DecoderConfig) -> None:
        half = config.head_dim // 2
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.inv_freq = 1.0 / (config.rope_theta**exponents)
        # Frequency i follows axis i % 3 (time, height, width) as far as that axis's section
        # reaches, and time beyond it.
        self._axis = torch.zeros(half, dtype=torch.int64)
        for axis in (1, 2):
            self._axis[axis : config.mrope_section[axis] * 3 : 3] = axis

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (cos, signed sin), each (n, 1, head_dim), for position_ids (3, n)."""
        return rope_tables(position_ids.to(torch.float32)[self._axis].T * self.inv_freq)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Scale the last axis of x to unit mean square, times weight; five kernels, not seven."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()).mul_(weight)


def _causal_mask(rows: int, cached: int) -> Tensor | None:
    """Return what to add to scores (rows, cached + rows), or None where SDPA needs no mask.

    SDPA's own causal mask starts at the first key, so it is right only without cached keys.
    """
    if rows == 1 or cached == 0:
        return None
    mask = torch.zeros(rows, cached + rows)
    mask[:, cached:] = torch.full((rows, rows), float("-inf")).triu_(1)
    return mask
