"""The empty model: names and shapes without memory, ties, and rotary frequencies that are real."""

import json
from pathlib import Path

import psutil
import pytest
import torch
from tiny_checkpoint import tiny_config, tiny_model

from vlm.commands.bench_random import GEOMETRY_2B
from vlm.errors import CheckpointError
from vlm.skeleton import EMBED, LM_HEAD, build_skeleton


def write_config(folder: Path, config: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("is_tied", [True, False])
def test_equals_the_model_transformers_builds(
    tmp_path: Path, bundled_folder: Path, is_tied: bool
) -> None:
    skeleton = build_skeleton(write_config(tmp_path, tiny_config(bundled_folder, is_tied)))
    plain = tiny_model(bundled_folder, is_tied)
    expected = {name: tuple(weight.shape) for name, weight in plain.named_parameters()}
    assert skeleton.shapes == expected
    assert skeleton.is_tied == is_tied == (LM_HEAD not in skeleton.shapes)
    # What an empty load loses: frequencies that no file holds.
    text, vision = plain.model.language_model.rotary_emb, plain.model.visual.rotary_pos_emb
    assert torch.equal(skeleton.text_inv_freq, text.inv_freq) and text.inv_freq[0] == 1
    assert torch.equal(skeleton.vision_inv_freq, vision.inv_freq)


def test_two_billion_weights_take_no_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(GEOMETRY_2B.read_bytes())
    build_skeleton(tmp_path)
    before = psutil.Process().memory_info().rss
    skeleton = build_skeleton(tmp_path)
    assert skeleton.shapes[EMBED] == (151936, 2048)
    assert psutil.Process().memory_info().rss - before < 50_000_000


def test_config_that_builds_nothing(tmp_path: Path, bundled_folder: Path) -> None:
    config = tiny_config(bundled_folder, True)
    config["text_config"]["hidden_size"] = "wide"
    with pytest.raises(CheckpointError, match="describes no model"):
        build_skeleton(write_config(tmp_path, config))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="holds no JSON object"):
        build_skeleton(tmp_path)
