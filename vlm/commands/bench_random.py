"""Write a checkpoint of a real geometry with random weights, so that speed needs no download.

Speed and memory depend on shapes, not on values. The tokenizer is the built-in model's: its
few tokens are the first of the larger vocabulary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vlm.architecture import CONFIG_FILE, read_json
from vlm.errors import ConfigError
from vlm.hub_cache import INDEX_FILE, damaged_files
from vlm.model_source import BUNDLED_FOLDER
from vlm.picture_size import PictureGeometry
from vlm.prompt import ChatTokenizer
from vlm.skeleton import build_skeleton
from vlm.units import format_bytes

GEOMETRY_2B = Path(__file__).with_name("geometry_2b.json")
TOKEN_KEYS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
SHARD_BYTES = 700_000_000
"""The memory that writing takes: one shard is made at a time."""
INIT_STD = 0.02
SEED = 0


def write_random_checkpoint(
    folder: Path,
    geometry: Path = GEOMETRY_2B,
    on_progress: Callable[[int, int], None] = lambda done_bytes, total_bytes: None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a bf16 checkpoint laid out like a hub snapshot; one that is there is kept.

    `geometry`: a config.json of a dense Qwen3-VL. Raises ConfigError without room on the disk,
    CheckpointError for a geometry that cannot run.
    """
    config = _with_bundled_tokens(read_json(geometry))
    if (folder / CONFIG_FILE).is_file() and read_json(folder / CONFIG_FILE) == config:
        if not damaged_files(folder):
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
    for file in BUNDLED_FOLDER.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in (CONFIG_FILE, INDEX_FILE):
            shutil.copy(file, folder / file.name)
    _allow_any_picture(folder / "preprocessor_config.json")
    shapes = build_skeleton(folder).shapes
    total = 2 * sum(map(prod, shapes.values()))
    free = shutil.disk_usage(folder).free
    if free < total * 1.05:
        raise ConfigError(
            f"The random weights need {format_bytes(total)} on the disk, but {folder} has "
            f"{format_bytes(free)} free. Give another folder with --scratch DIR."
        )
    _write_shards(folder, shapes, total, shard_bytes, on_progress)
    return folder


def _with_bundled_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """Let the config name the control tokens of the built-in tokenizer."""
    own = read_json(BUNDLED_FOLDER / CONFIG_FILE)
    config.update({key: own[key] for key in TOKEN_KEYS})
    size = ChatTokenizer.from_folder(BUNDLED_FOLDER).backend.get_vocab_size()
    if config.get("text_config", {}).get("vocab_size", size) < size:
        raise ConfigError(f"A geometry for the benchmark needs a vocab_size of at least {size}.")
    return config


def _allow_any_picture(path: Path) -> None:
    """Let pictures be as small and as large as the published models allow."""
    values = read_json(path)
    geometry = PictureGeometry()
    values["size"] = {"shortest_edge": geometry.min_px, "longest_edge": geometry.max_px}
    values.pop("min_pixels", None)
    values.pop("max_pixels", None)
    path.write_text(json.dumps(values), encoding="utf-8")


def _write_shards(
    folder: Path,
    shapes: dict[str, tuple[int, ...]],
    total: int,
    shard_bytes: int,
    on_progress: Callable[[int, int], None],
) -> None:
    shards = _shards(shapes, shard_bytes)
    random = torch.Generator().manual_seed(SEED)
    weight_map, done = {}, 0
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: _random(name, shapes[name], random) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
        done += sum(tensor.nbytes for tensor in tensors.values())
        on_progress(done, total)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")


def _shards(shapes: dict[str, tuple[int, ...]], shard_bytes: int) -> list[list[str]]:
    """Fill shards in the model's order."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        if shards[-1] and size + 2 * prod(shape) > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * prod(shape)
    return shards


def _random(name: str, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    if "norm" in name and name.endswith("weight"):
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, INIT_STD, generator=random)
