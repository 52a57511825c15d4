"""Geometry of the text decoder, read from a checkpoint's config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlm.errors import CheckpointError


@dataclass(frozen=True)
class DecoderConfig:
    """Geometry of the text decoder, named as in this app."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int]
    context_tokens: int
    tie_word_embeddings: bool

    @property
    def kv_token_bytes(self) -> int:
        """Bytes that one token takes in a cache: fp32 keys and values of all layers."""
        return 4 * 2 * self.layers * self.kv_heads * self.head_dim

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DecoderConfig:
        """Read a checkpoint's whole config.json. Raises CheckpointError."""
        text = config.get("text_config") or config
        rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        for what, value, supported in (
            ("rope_type", rope_type, ("default", "mrope")),
            ("hidden_act", text.get("hidden_act", "silu"), ("silu",)),
        ):
            if value not in supported:
                raise CheckpointError(
                    f"text_config.{what} is {value!r}; supported is {supported[0]!r}. "
                    "Use one of the dense Qwen3-VL Instruct models."
                )
        try:
            temporal, height, width = rope.get("mrope_section", (24, 20, 20))
            heads = text["num_attention_heads"]
            return cls(
                vocab_size=text["vocab_size"],
                hidden_size=text["hidden_size"],
                intermediate_size=text["intermediate_size"],
                layers=text["num_hidden_layers"],
                heads=heads,
                kv_heads=text.get("num_key_value_heads") or heads,
                head_dim=text.get("head_dim", text["hidden_size"] // heads),
                rms_norm_eps=text.get("rms_norm_eps", 1e-6),
                rope_theta=float(rope.get("rope_theta", text.get("rope_theta", 500_000.0))),
                mrope_section=(temporal, height, width),
                context_tokens=text.get("max_position_embeddings", 128_000),
                tie_word_embeddings=config.get(
                    "tie_word_embeddings", text.get("tie_word_embeddings", False)
                ),
            )
        except KeyError as missing:
            raise CheckpointError(
                f"text_config has no {missing}; download the model's config.json again."
            ) from None
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"text_config is damaged ({error}); download the model's config.json again."
            ) from error
