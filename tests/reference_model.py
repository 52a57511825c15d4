"""A tiny random Qwen3-VL: transformers' model, and ours over the same weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from vlm.decoder import Decoder, DecoderWeights, LayerWeights
from vlm.decoder_config import DecoderConfig
from vlm.linear import WeightKind, pack
from vlm.vision import (
    BlockWeights,
    MergerWeights,
    NormWeights,
    VisionConfig,
    VisionTower,
    VisionWeights,
)

PICTURE_ID, START_ID, END_ID = 500, 501, 502


@dataclass(frozen=True, eq=False)
class Chat:
    """Token ids with their pictures, and what transformers makes of them."""

    token_ids: Tensor
    position_ids: Tensor
    """(3, n)"""
    pictures: tuple[tuple[Tensor, tuple[int, int, int]], ...]
    expected: Tensor
    """(n, vocab) logits of the whole chat in one pass."""

    @property
    def visual_index(self) -> Tensor:
        return (self.token_ids == PICTURE_ID).nonzero().flatten()


@functools.cache
def stock_model(is_tied: bool) -> Qwen3VLForConditionalGeneration:
    """Build transformers' model with weights large enough that every part shows."""
    torch.manual_seed(7)
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": 512,
            "hidden_size": 96,
            "intermediate_size": 160,
            "num_hidden_layers": 5,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5_000_000,
                "mrope_interleaved": True,
                "mrope_section": [6, 5, 5],
            },
            "tie_word_embeddings": is_tied,
        },
        vision_config={
            "depth": 4,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_heads": 4,
            "out_hidden_size": 96,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [1, 2],
        },
        image_token_id=PICTURE_ID,
        vision_start_token_id=START_ID,
        vision_end_token_id=END_ID,
        tie_word_embeddings=is_tied,
    )
    model = Qwen3VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.1)
    return model


def decoder(stock: Qwen3VLForConditionalGeneration, kind: WeightKind = "fp32") -> Decoder:
    """Build our decoder over the stock model's weights."""
    text = stock.model.language_model

    def joined(*layers: Any) -> Any:
        biases = [layer.bias for layer in layers]
        bias = None if biases[0] is None else torch.cat(biases).detach()
        return pack(torch.cat([layer.weight.detach() for layer in layers]), bias, kind)

    layers = tuple(
        LayerWeights(
            input_norm=layer.input_layernorm.weight.detach(),
            qkv=joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            q_norm=layer.self_attn.q_norm.weight.detach(),
            k_norm=layer.self_attn.k_norm.weight.detach(),
            o=joined(layer.self_attn.o_proj),
            post_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=joined(layer.mlp.gate_proj, layer.mlp.up_proj),
            down=joined(layer.mlp.down_proj),
        )
        for layer in text.layers
    )
    weights = DecoderWeights(
        embed=text.embed_tokens.weight.detach(),
        layers=layers,
        norm=text.norm.weight.detach(),
        lm_head=joined(stock.lm_head),
    )
    return Decoder(DecoderConfig.from_config(stock.config.to_dict()), weights)


def vision_tower(stock: Qwen3VLForConditionalGeneration, kind: WeightKind = "fp32") -> VisionTower:
    """Build our vision tower over the stock model's weights."""
    visual = stock.model.visual

    def packed(layer: Any) -> Any:
        return pack(layer.weight.detach().flatten(1), layer.bias.detach(), kind)

    def norm(layer: Any) -> NormWeights:
        return NormWeights(layer.weight.detach(), layer.bias.detach())

    def merger(layer: Any) -> MergerWeights:
        return MergerWeights(norm(layer.norm), packed(layer.linear_fc1), packed(layer.linear_fc2))

    weights = VisionWeights(
        patch_embed=packed(visual.patch_embed.proj),
        positions=visual.pos_embed.weight.detach(),
        blocks=tuple(
            BlockWeights(
                norm1=norm(block.norm1),
                qkv=packed(block.attn.qkv),
                proj=packed(block.attn.proj),
                norm2=norm(block.norm2),
                fc1=packed(block.mlp.linear_fc1),
                fc2=packed(block.mlp.linear_fc2),
            )
            for block in visual.blocks
        ),
        merger=merger(visual.merger),
        deepstack=tuple(merger(layer) for layer in visual.deepstack_merger_list),
    )
    return VisionTower(VisionConfig.from_config(stock.config.to_dict()), weights)


def chat(
    stock: Qwen3VLForConditionalGeneration, *grids: tuple[int, int, int], seed: int = 0
) -> Chat:
    """Make a chat of random text around one random picture per grid."""
    generator = torch.Generator().manual_seed(seed)
    ids, pictures = _words(5, generator), []
    for grid in grids:
        patches = grid[1] * grid[2]
        pictures.append((torch.randn(patches, 1536, generator=generator), grid))
        ids += [START_ID, *[PICTURE_ID] * (patches // 4), END_ID, *_words(4, generator)]
    token_ids = torch.tensor(ids + _words(6, generator))
    is_visual = (token_ids == PICTURE_ID).int()[None]
    inputs: dict[str, Any] = {"input_ids": token_ids[None], "mm_token_type_ids": is_visual}
    if pictures:
        inputs["image_grid_thw"] = torch.tensor(grids)
    positions, _ = stock.model.get_rope_index(**inputs)
    if pictures:
        inputs["pixel_values"] = torch.cat([pixels for pixels, _ in pictures])
    stock.model.rope_deltas = None
    with torch.no_grad():
        expected = stock(**inputs, use_cache=False).logits[0]
    return Chat(token_ids, positions[:, 0], tuple(pictures), expected)


def _words(count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(0, 490, (count,), generator=generator).tolist()
