"""Random Qwen3-VL checkpoints of a few hundred thousand weights, saved by transformers."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def tiny_config(bundled_folder: Path, is_tied: bool) -> dict[str, Any]:
    """Return a config.json that fits the bundled tokenizer."""
    config: dict[str, Any] = json.loads((bundled_folder / "config.json").read_text())
    config["tie_word_embeddings"] = is_tied
    del config["text_config"]["dtype"]  # transformers would build that part in bf16
    config["text_config"].update(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        head_dim=32,
        rope_scaling={
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
            "rope_type": "default",
        },
        tie_word_embeddings=is_tied,
    )
    config["vision_config"].update(
        hidden_size=48, intermediate_size=80, depth=4, num_heads=4, out_hidden_size=64
    )
    return config


@functools.cache
def tiny_model(bundled_folder: Path, is_tied: bool) -> Qwen3VLForConditionalGeneration:
    """Build a random model with weights that bf16 holds exactly, in fp32."""
    config = tiny_config(bundled_folder, is_tied)
    torch.manual_seed(3)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(config)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.1)
            weight.copy_(weight.to(torch.bfloat16))
    return model


def write_checkpoint(
    folder: Path,
    bundled_folder: Path,
    *,
    is_tied: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    shard_size: str = "1GB",
    template: str = "chat_template.json",
) -> Path:
    """Save a checkpoint laid out like a hub snapshot."""
    model = tiny_model(bundled_folder, is_tied)
    # Not model.to(dtype): that would round the rotary frequencies of the shared model, too.
    state = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    if is_tied:
        del state["lm_head.weight"]
    model.save_pretrained(folder, state_dict=state, max_shard_size=shard_size)
    for name in (*TOKENIZER_FILES, "preprocessor_config.json"):
        shutil.copy(bundled_folder / name, folder / name)
    content = json.loads((bundled_folder / "chat_template.json").read_text())
    if template == "chat_template.jinja":
        (folder / template).write_text(content["chat_template"])
    else:
        (folder / template).write_text(json.dumps(content))
    return folder
