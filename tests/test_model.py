"""The start-up self-check: passes on a sound model, fails loudly on one that computes nonsense."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoint import write_checkpoint

from vlm.checkpoint import load_model
from vlm.errors import CheckpointError
from vlm.model import QwenVL, self_check
from vlm.precision import PrecisionPlan


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, bundled_folder: Path) -> QwenVL:
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny", bundled_folder)
    plan = PrecisionPlan("fp32", "fp32", "fp32", "", {})
    return load_model(folder, plan, name="tiny", available_bytes=10**12)


def test_sound_model_passes(model: QwenVL) -> None:
    self_check(model)


@pytest.mark.parametrize("change", [lambda y: y * float("nan"), torch.zeros_like])
def test_nonsense_from_the_decoder_is_refused(
    model: QwenVL,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    logits = model.decoder.logits
    monkeypatch.setattr(model.decoder, "logits", lambda rows: change(logits(rows)))
    with pytest.raises(CheckpointError, match="tiny was loaded, but its text decoder .*fp32"):
        self_check(model)


def test_nonsense_in_a_deepstack_level_is_refused(
    model: QwenVL, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = model.vision.encode

    def broken(*args: Any, **kwargs: Any) -> Any:
        features = encode(*args, **kwargs)
        deepstack = (*features.deepstack[:-1], features.deepstack[-1] * float("inf"))
        return replace(features, deepstack=deepstack)

    monkeypatch.setattr(model.vision, "encode", broken)
    with pytest.raises(CheckpointError, match="vision tower"):
        self_check(model)


def test_info_of_the_bundled_model(bundled_folder: Path) -> None:
    plan = PrecisionPlan("fp32", "fp32", "fp32", "", {})
    info = load_model(bundled_folder, plan, is_bundled=True).info
    assert info.is_bundled and info.name == bundled_folder.name
    assert 5_000_000 < info.parameters < 10_000_000
    table = 4 * 1000 * 256
    assert abs(info.weight_bytes - 4 * info.parameters) < table
