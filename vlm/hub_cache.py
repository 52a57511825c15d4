"""Whole models in the local Hugging Face cache: where they lie, and whether nothing is missing."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from huggingface_hub import constants
from safetensors import SafetensorError, safe_open

from vlm.architecture import CONFIG_FILE, read_json
from vlm.errors import CheckpointError

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TEXT_FILES = (CONFIG_FILE, "tokenizer.json", "preprocessor_config.json")
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
OPTIONAL_FILES = ("generation_config.json", *TEMPLATE_FILES)
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""File names inside a model's own folder; anything with a path in it is refused."""


def hub_cache_folder() -> Path:
    """Return the cache folder that HF_HUB_CACHE, HF_HOME or the default names."""
    return Path(constants.HF_HUB_CACHE)


def storage_folder(hub_id: str, cache_folder: Path) -> Path:
    """Return the folder of one model in the cache, whether it exists or not."""
    return cache_folder / ("models--" + hub_id.replace("/", "--"))


def shard_names(folder: Path) -> list[str]:
    """Return the weight files a snapshot must hold, from its index if it has one.

    Raises CheckpointError for an index that cannot be read or names other folders.
    """
    if not (folder / INDEX_FILE).exists():
        return [WEIGHTS_FILE]
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE} names no weights; download the model again.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not PLAIN_NAME.fullmatch(name):
            raise CheckpointError(f"{folder / INDEX_FILE} names a file outside its folder: {name}")
    return names


def damaged_files(folder: Path) -> list[str]:
    """Return what keeps a snapshot from being whole, in words; empty when it is whole.

    Opening a safetensors file checks its header against its length, so a cut one is found
    without reading its weights.
    """
    problems = [f"{name} is missing" for name in TEXT_FILES if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in TEMPLATE_FILES):
        problems.append("the chat template is missing")
    try:
        names = shard_names(folder)
    except CheckpointError as error:
        return [*problems, str(error)]
    for name in names:
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
            continue
        try:
            with safe_open(folder / name, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            problems.append(f"{name} is cut off or damaged ({error})")
    return problems


def complete_snapshot(hub_id: str, cache_folder: Path) -> Path | None:
    """Return the folder of a whole model in the cache, the one "main" names first, or None."""
    try:
        return _whole_snapshot(storage_folder(hub_id, cache_folder))
    except OSError as error:
        logger.warning("The cache in %s cannot be read: %s", cache_folder, error)
        return None


def _whole_snapshot(storage: Path) -> Path | None:
    """Look through the snapshots of one model. Raises OSError."""
    snapshots = storage / "snapshots"
    if not snapshots.is_dir():
        return None
    folders = [folder for folder in snapshots.iterdir() if folder.is_dir()]
    folders.sort(key=os.path.getmtime, reverse=True)
    try:
        main = (storage / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        main = ""
    folders.sort(key=lambda folder: folder.name != main)
    return next((f for f in folders if not damaged_files(f)), None)
