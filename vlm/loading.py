"""Bring the model from settings to ready: find or download it, choose a precision, load it.

Every step is reported as a ModelState; the report may raise Stopped to end the work.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from vlm.chat import Capacity, ModelState
from vlm.checkpoint import load_model
from vlm.config import Settings
from vlm.generate import Generator
from vlm.hardware import this_machine
from vlm.kv_cache import ConversationCaches, FeatureCache
from vlm.memory import free_memory
from vlm.model_source import DownloadProgress, ModelFolder, find_model
from vlm.numa import stay_on_one_node, weight_files_bytes
from vlm.precision import choose_precision
from vlm.request_checks import AnswerLimits

logger = logging.getLogger(__name__)

Report = Callable[[ModelState], None]


def load_generator(settings: Settings, report: Report) -> Generator:
    """Find, download and load the model that the settings name, and make its caches.

    Raises ModelError with a sentence, and whatever `report` raises.
    """
    report(ModelState("finding", "Looking for the model."))
    folder = _find(settings, report)
    # 16-bit files may become 32-bit weights.
    cores = stay_on_one_node(this_machine(), 2 * weight_files_bytes(folder.path))
    use_threads(settings.model.threads, cores)
    state = ModelState(
        "loading",
        f"Loading {folder.name}.",
        model=folder.name,
        is_bundled=folder.is_bundled,
        notice=folder.notice,
    )
    report(state)
    plan = choose_precision(settings.model.precision, verdict_file())
    state = replace(state, precision=plan.name, precision_reason=plan.reason)
    model = load_model(
        folder.path,
        plan,
        _load_progress(state, report),
        name=folder.name,
        is_bundled=folder.is_bundled,
        available_bytes=spare_bytes(settings),
    )
    limits = AnswerLimits(
        context_tokens=min(settings.model.context_tokens, model.info.context_tokens),
        max_pictures=settings.picture.max_pictures,
        loop_guard=settings.generation.loop_guard,
    )
    caches = ConversationCaches(settings.memory.kv_cache_bytes, model.decoder.new_cache)
    features = FeatureCache(settings.memory.feature_cache_bytes)
    plan = model.info.precision  # short memory may have forced another one
    report(
        replace(
            state,
            stage="ready",
            message="Ready.",
            parameters=model.info.parameters,
            capacity=Capacity(
                limits.context_tokens, model.decoder.config.kv_token_bytes, model.geometry
            ),
            precision=plan.name,
            precision_reason=plan.reason,
            notice=" ".join(filter(None, (folder.notice, model.info.notice))),
        )
    )
    return Generator(model, caches, features, limits, settings.memory.min_free_bytes)


def spare_bytes(settings: Settings) -> int:
    """Return the memory a model may take: what is free, less what must stay free."""
    return max(0, free_memory().available_bytes - settings.memory.min_free_bytes)


def verdict_file() -> Path | None:
    """Return where measurements of precisions are remembered; None for a user without a home."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return cache / "talk-to-pictures" / "precision.json"


def use_threads(threads: int, cores: int | None = None) -> None:
    """Compute with so many threads from this thread on; 0: with the cores this process has.

    OMP_NUM_THREADS, when a person set it, counts before the cores.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    own = int(asked) if asked.isdigit() else 0
    torch.set_num_threads(threads or own or cores or this_machine().usable_cores)


def _find(settings: Settings, report: Report) -> ModelFolder:
    cache_folder = settings.model.cache_folder

    def show(progress: DownloadProgress) -> None:
        report(
            ModelState(
                "downloading" if progress.total_bytes else "finding",
                progress.message,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                eta_s=progress.eta_s,
            )
        )

    return find_model(
        settings.model.model,
        show,
        cache_folder=Path(cache_folder).expanduser() if cache_folder else None,
        download=settings.model.download,
    )


def _load_progress(state: ModelState, report: Report) -> Callable[[int, int], None]:
    """Turn loaded bytes into states with the time left, judged by the speed so far."""
    began = time.monotonic()

    def show(done_bytes: int, total_bytes: int) -> None:
        passed_s = time.monotonic() - began
        eta_s = passed_s * (total_bytes - done_bytes) / done_bytes if done_bytes else None
        report(replace(state, done_bytes=done_bytes, total_bytes=total_bytes, eta_s=eta_s))

    return show
