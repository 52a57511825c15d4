"""Which model architectures this app can run, read from a checkpoint's config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, TypeGuard

from vlm.errors import CheckpointError

CONFIG_FILE = "config.json"
ARCHITECTURE = "Qwen3VLForConditionalGeneration"
SUPPORTED = (
    f"Supported are the dense Qwen3-VL models ({ARCHITECTURE}): "
    "Qwen3-VL-2B-, 4B-, 8B- and 32B-Instruct in bf16, fp16 or fp32 safetensors"
)

COUNTS = {
    "text_config": (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    ),
    "vision_config": (
        "depth", "hidden_size", "intermediate_size", "num_heads", "in_channels", "patch_size",
        "temporal_patch_size", "spatial_merge_size", "out_hidden_size",
        "num_position_embeddings",
    ),
}  # fmt: skip
"""What config.json counts: whole numbers above 0."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint. Raises CheckpointError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; download the model again.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); delete it and download the model again."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object; download the model again.")
    return content


def check_architecture(config: dict[str, Any], source: str) -> None:
    """Refuse a config.json of anything but a dense Qwen3-VL model, or with impossible sizes.

    `source` names the model or folder in the message. Raises CheckpointError.
    """
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        architectures = [architectures]
    model_type = config.get("model_type")
    if model_type != "qwen3_vl" or architectures not in ([], [ARCHITECTURE]):
        found = ", ".join(str(name) for name in architectures) or f"model type {model_type!r}"
        hint = ""
        if model_type == "qwen3_vl_moe":
            hint = " Mixture-of-experts models (30B-A3B, 235B-A22B) are not."
        raise CheckpointError(f"{source} is a {found}, which cannot run here. {SUPPORTED}.{hint}")
    if quantization := config.get("quantization_config"):
        is_table = isinstance(quantization, dict)
        method = quantization.get("quant_method", "unknown") if is_table else quantization
        raise CheckpointError(
            f"{source} holds quantised weights ({method}), which cannot run here. {SUPPORTED}; "
            "take the model without the suffix (precision is reduced while loading)."
        )
    _check_geometry(config, source)


def _check_geometry(config: dict[str, Any], source: str) -> None:
    """Refuse sizes that no model can have; what is left out has a default elsewhere."""
    faults = [
        f"{part}.{fault}"
        for part, counts in COUNTS.items()
        if isinstance(table := config.get(part), dict)
        for fault in _faults(table, counts)
    ]
    if faults:
        raise CheckpointError(
            f"{source} has a {CONFIG_FILE} that describes no model: {'; '.join(faults)}. "
            "Download the model again."
        )


def _faults(table: dict[str, Any], counts: tuple[str, ...]) -> Iterator[str]:
    """Name the numbers of one part that cannot be."""
    for name in counts:
        # Without heads of their own, keys and values have as many as the queries.
        is_left_out = name not in table or (table[name] is None and name == "num_key_value_heads")
        if not is_left_out and not _is_count(table[name]):
            yield f"{name} is {table[name]!r:.40}, which must be a whole number above 0"
    rope = table.get("rope_parameters") or table.get("rope_scaling")
    table = {**table, **rope} if isinstance(rope, dict) else table
    for name in ("rope_theta", "rms_norm_eps"):
        value = table.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            yield f"{name} is {value!r:.40}, which must be a number above 0"
    sections = table.get("mrope_section")
    if isinstance(sections, list) and not all(map(_is_count, sections)):
        yield f"mrope_section is {sections!r:.40}, which must be whole numbers above 0"
    layers, depth = table.get("deepstack_visual_indexes", []), table.get("depth")
    is_list = isinstance(layers, list)
    if _is_count(depth) and not (is_list and all(layer in range(depth) for layer in layers)):
        yield f"deepstack_visual_indexes is {layers!r:.40}, which must be layers below {depth}"


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
