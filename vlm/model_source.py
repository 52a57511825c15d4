"""From --model to a folder on disk: the local cache, a download, a folder, or the bundled model."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from vlm.architecture import CONFIG_FILE, check_architecture, read_json
from vlm.download import Download, DownloadProgress, OnProgress
from vlm.errors import CheckpointError, ModelError, ModelNotFoundError
from vlm.hub_cache import complete_snapshot, damaged_files, hub_cache_folder
from vlm.hub_listing import list_model

__all__ = ["DownloadProgress", "ModelFolder", "find_model"]

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "Qwen/Qwen3-VL-2B-Instruct"
BUNDLED_FOLDER = Path(__file__).parent / "bundled" / "model"
BUNDLED_NAME = "Qwen3-VL shapes (built in)"
BUNDLED_NOTICE = (
    "This is the small built-in model: it knows shapes, colours and short words only, "
    "not your photos."
)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelFolder:
    """Where a model lies and what to call it; `notice` is a banner, or empty."""

    path: Path
    name: str
    is_bundled: bool
    notice: str = ""


def find_model(
    model: str,
    on_progress: OnProgress,
    *,
    cache_folder: Path | None = None,
    download: bool = True,
    bundled_folder: Path = BUNDLED_FOLDER,
    default_model: str = DEFAULT_MODEL,
) -> ModelFolder:
    """Return the folder for --model auto|bundled|HUB_ID|FOLDER, fetching it when needed.

    "auto" never fails while the bundled model is there: its notice then tells the reason.
    Without `download` the network is left alone.
    Raises ModelNotFoundError, DownloadError or CheckpointError, and what `on_progress` raises.
    """
    if model == "bundled":
        return _bundled(bundled_folder, BUNDLED_NOTICE)
    if model == "auto":
        try:
            return _from_hub(default_model, on_progress, cache_folder, download)
        except ModelError as error:
            logger.warning("%s is not here: using the built-in model", default_model)
            if not (bundled_folder / CONFIG_FILE).is_file():
                raise
            return _bundled(bundled_folder, f"{BUNDLED_NOTICE} {_how_to_get(default_model, error)}")
    if (folder := _existing_folder(model)) is not None:
        return _from_folder(folder)
    if HUB_ID.fullmatch(model):
        return _from_hub(model, on_progress, cache_folder, download)
    raise ModelNotFoundError(
        f"{model!r} is neither a folder nor a model's name. Give auto, bundled, a name such as "
        f"{DEFAULT_MODEL}, or a folder that holds config.json and safetensors."
    )


def _existing_folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):  # too long, not to be read, or "~" of an unknown person
        return None


def _bundled(folder: Path, notice: str) -> ModelFolder:
    if not (folder / CONFIG_FILE).is_file():
        raise ModelNotFoundError(
            f"The built-in model is missing from {folder}. Get the repository again, with its "
            "files in vlm/bundled/model."
        )
    return ModelFolder(folder, BUNDLED_NAME, is_bundled=True, notice=notice)


def _how_to_get(model: str, error: ModelError) -> str:
    """Say why the real model is not used; the error says what to do, so that is not said again."""
    words = f"The real model, {model.split('/')[1]}, is not used: {error}"
    if "--model" not in words:
        words += " If you have it on disk, give its folder with --model FOLDER."
    return words


def _from_folder(folder: Path) -> ModelFolder:
    if not (folder / CONFIG_FILE).is_file():
        raise ModelNotFoundError(
            f"{folder} holds no {CONFIG_FILE}, so it is no model. Give the folder that holds "
            "config.json, tokenizer.json, preprocessor_config.json and the safetensors."
        )
    check_architecture(read_json(folder / CONFIG_FILE), str(folder))
    if problems := damaged_files(folder):
        raise CheckpointError(
            f"{folder} is no whole model: {'; '.join(problems)}. Put those files there, or "
            "download the model again."
        )
    is_bundled = folder.resolve() == BUNDLED_FOLDER.resolve()
    return ModelFolder(folder, folder.resolve().name, is_bundled)


def _from_hub(
    hub_id: str, on_progress: OnProgress, cache_folder: Path | None, download: bool
) -> ModelFolder:
    cache_folder = cache_folder or hub_cache_folder()
    folder = complete_snapshot(hub_id, cache_folder)
    if folder is None and not download:
        raise ModelNotFoundError(
            f"{hub_id} is not (whole) in {cache_folder}, and downloads are switched off in the "
            "settings. Switch them on (model.download), or give a folder with --model FOLDER."
        )
    if folder is None:
        on_progress(DownloadProgress(f"Looking for {hub_id}"))
        folder = Download(list_model(hub_id), cache_folder, on_progress).run()
        if problems := damaged_files(folder):
            raise CheckpointError(
                f"{hub_id} was fetched, but it is no whole model: {'; '.join(problems)}. "
                "Choose a Qwen3-VL Instruct model."
            )
    return ModelFolder(folder, hub_id, is_bundled=False)
