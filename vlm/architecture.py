"""Which model architectures this app can run, read from a checkpoint's config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlm.errors import CheckpointError

CONFIG_FILE = "config.json"
ARCHITECTURE = "Qwen3VLForConditionalGeneration"
SUPPORTED = (
    f"Supported are the dense Qwen3-VL models ({ARCHITECTURE}): "
    "Qwen3-VL-2B-, 4B-, 8B- and 32B-Instruct in bf16, fp16 or fp32 safetensors"
)


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
    """Refuse a config.json of anything but a dense Qwen3-VL model. Raises CheckpointError.

    `source` names the model or folder in the message.
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
