"""Training runs, learns, and writes a checkpoint the product loads."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, Qwen3VLForConditionalGeneration

from vlm.bundled.batches import BatchMaker
from vlm.bundled.fresh_weights import prepare_weights
from vlm.bundled.heads import DenseHeads
from vlm.bundled.losses import attention_mask, batch_loss
from vlm.bundled.scenes import SceneMix
from vlm.bundled.stages import STAGES
from vlm.bundled.train import export, optimizers, run_stage, save


def test_a_question_sees_the_picture_and_itself_only():
    mask = attention_mask(torch.tensor([[0, 0, 1, 1, 2, -1]]))[0, 0]
    assert mask[1].tolist() == [True, True, False, False, False, False]
    assert mask[3].tolist() == [True, True, True, True, False, False]
    assert mask[4].tolist() == [True, True, False, False, True, False]


def test_the_loss_falls_on_a_batch_seen_again(bundled_folder):
    config = AutoConfig.from_pretrained(bundled_folder, local_files_only=True)
    model, heads = Qwen3VLForConditionalGeneration(config).float(), DenseHeads(256)
    prepare_weights(model, 1)
    tokenizer = Tokenizer.from_file(str(bundled_folder / "tokenizer.json"))
    batch = BatchMaker(tokenizer, 1, 2, SceneMix(), ((4, 4),)).make(0)
    stage = STAGES["final"]
    steppers = optimizers(model, heads, stage)
    losses = []
    for _ in range(12):
        loss = torch.stack([*batch_loss(model, heads, batch, stage).values()]).sum()
        loss.backward()
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", ["vision", "language", "final"])
def test_a_stage_writes_its_checkpoint(name, tmp_path, bundled_folder):
    stage = replace(STAGES[name], steps=1, pictures=2, grids=((2, 2),), silent_pictures=0)
    run_stage(name, stage, tmp_path, seed=1, start=None)
    kept = torch.load(tmp_path / f"{name}.pt", weights_only=True)
    assert all(bool(tensor.isfinite().all()) for tensor in kept["model"].values())


def test_a_tower_that_stays_as_it_is_stays_but_for_its_mergers(tmp_path, bundled_folder):
    stage = replace(STAGES["language"], steps=2, pictures=2, grids=((2, 2),))
    run_stage("language", stage, tmp_path, seed=1, start="committed")
    kept = torch.load(tmp_path / "language.pt", weights_only=True)["model"]
    changed = set()
    with safe_open(bundled_folder / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118  # safe_open is no dict
            if not kept[name].equal(file.get_tensor(name).float()):
                changed.add(name)
    assert not any("visual" in name and "merger" not in name for name in changed)
    assert any("visual.deepstack_merger_list" in name for name in changed)
    assert any("language_model.layers" in name for name in changed)


def test_a_stage_goes_on_from_the_committed_weights(tmp_path, bundled_folder):
    stage = replace(STAGES["vision"], steps=1, pictures=2, grids=((2, 2),), lr=0.0)
    run_stage("vision", stage, tmp_path, seed=1, start="committed")
    kept = torch.load(tmp_path / "vision.pt", weights_only=True)["model"]
    name = "model.visual.blocks.0.mlp.linear_fc1.weight"
    with safe_open(bundled_folder / "model.safetensors", "pt") as file:
        torch.testing.assert_close(kept[name], file.get_tensor(name).float())


def test_the_export_holds_every_weight_once_in_bf16(tmp_path, bundled_folder):
    config = AutoConfig.from_pretrained(bundled_folder, local_files_only=True)
    model = Qwen3VLForConditionalGeneration(config)
    save(model, DenseHeads(256), tmp_path / "final.pt")
    folder = tmp_path / "model"
    shutil.copytree(bundled_folder, folder)
    export(tmp_path, "final", folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.bfloat16}
    assert names == {n for n in model.state_dict() if n != "lm_head.weight"}
    written = json.loads((folder / "config.json").read_text())
    assert written == json.loads((bundled_folder / "config.json").read_text())
