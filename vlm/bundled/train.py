"""Trains the built-in model: `python -m vlm.bundled.train`.

Three stages: "vision" teaches the vision tower from dense labels on small pictures,
"joint" adds the language model, "final" goes on at full size while the steps shrink to
nothing. Each stage reads and writes the run folder, so a stage can be repeated alone.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, Qwen3VLForConditionalGeneration

from vlm.bundled import BUNDLED_FOLDER
from vlm.bundled.batches import (
    CHARACTER_SLOTS,
    IGNORED,
    LARGE_GRIDS,
    VISION_GRIDS,
    Batch,
    BatchMaker,
    Labels,
    load_easy_vqa,
)
from vlm.bundled.muon import Muon
from vlm.bundled.network import DenseHeads, encode_pictures, prepare_weights, run_text
from vlm.bundled.scenes import SceneMix
from vlm.bundled.tokenizer import write_folder

log = logging.getLogger(__name__)

COMMITTED = "committed"
"""Start from the weights that are committed; the dense heads, used in training only, are new."""


CHARACTER_WEIGHTS = (1.0, 0.6, 0.3)


@dataclass(frozen=True)
class Stage:
    """How one stage trains."""

    steps: int
    pictures: int
    """Pictures of 36 visual tokens per step; more when they are smaller."""
    grids: tuple[tuple[int, int], ...]
    mix: SceneMix
    lr: float
    """Of Muon; AdamW's follows it."""
    final_lr: float
    """The step size falls in a line to this share of lr."""
    with_chats: bool
    dense_weight: float
    text_weight: float = 1.0
    silent_pictures: int = 0
    """Crowded pictures per step that are not talked about."""


STAGES = {
    "vision": Stage(
        900,
        32,
        VISION_GRIDS,
        SceneMix(text=0.3, one_big=0.3, both=0.1, crowd=2.5),
        0.006,
        0.5,
        False,
        1.0,
    ),
    "joint": Stage(250, 24, VISION_GRIDS, SceneMix(), 0.005, 0.7, True, 0.5, silent_pictures=12),
    "final": Stage(580, 20, LARGE_GRIDS, SceneMix(), 0.0045, 0.0, True, 0.6, 1.3, 12),
}


def dense_loss(heads: DenseHeads, embeddings: Tensor, labels: Labels) -> dict[str, Tensor]:
    """Compare what the heads read off every visual token with the truth."""
    kind, colour, background, *rest = heads(embeddings)
    characters, (box, ninth, *edges) = rest[:CHARACTER_SLOTS], rest[CHARACTER_SLOTS:]
    wanted = {name: torch.from_numpy(getattr(labels, name)) for name in labels.__dict__}
    losses = {
        "kind": _cross_entropy(kind, wanted["kind"]),
        "colour": _cross_entropy(colour, wanted["colour"]),
        "background": 0.3 * _cross_entropy(background, wanted["background"]),
    }
    # Most tokens hold no character: those that do, and their neighbours in kind, decide.
    text = wanted["kind"] == heads.SIZES[0] - 1
    for slot, logits in enumerate(characters):
        target = wanted["characters"][..., slot]
        near = text | (target > 0)
        target = torch.where(near, target, torch.full_like(target, IGNORED))
        losses[f"character{slot}"] = CHARACTER_WEIGHTS[slot] * _cross_entropy(logits, target)
    things = wanted["kind"] > 0
    if things.any():
        true_box = wanted["box"][things]
        losses["box"] = 4.0 * (box[things] - true_box).abs().mean()
        middle = (true_box[:, :2] + true_box[:, 2:]).mul(1.5).long().clamp(max=2)
        losses["ninth"] = 0.5 * F.cross_entropy(ninth[things], middle[:, 1] * 3 + middle[:, 0])
        tenths = (true_box * 100).round().div(10).long()
        losses["edges"] = (
            0.15
            * torch.stack(
                [F.cross_entropy(edge[things], tenths[:, i]) for i, edge in enumerate(edges)]
            ).sum()
        )
    return losses


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    if not (target != IGNORED).any():
        return logits.sum() * 0.0
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=IGNORED)


def attention_mask(segments: Tensor) -> Tensor:
    """Return (b, 1, t, t) bool: a token sees the shared part and its own segment before it."""
    same = segments[:, :, None] == segments[:, None, :]
    shared = segments[:, None, :] == 0
    causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool).tril()
    return ((same | shared) & causal)[:, None]


def batch_loss(
    model: Qwen3VLForConditionalGeneration, heads: DenseHeads, batch: Batch, stage: Stage
) -> dict[str, Tensor]:
    """Return the weighted losses of one batch by name."""
    embeddings, deepstack = encode_pictures(model, torch.from_numpy(batch.pixels))
    losses = {
        name: stage.dense_weight * loss
        for name, loss in dense_loss(heads, embeddings, batch.labels).items()
    }
    if stage.with_chats:
        segments = torch.from_numpy(batch.segments)
        hidden = run_text(
            model,
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.position_ids),
            attention_mask(segments),
            embeddings.flatten(0, 1),
            [features.flatten(0, 1) for features in deepstack],
        )
        targets = torch.from_numpy(batch.targets)
        asked = targets != IGNORED
        losses["answers"] = F.cross_entropy(model.lm_head(hidden[asked]), targets[asked])
    return losses


def optimizers(
    model: Qwen3VLForConditionalGeneration, heads: DenseHeads, stage: Stage
) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, AdamW for embeddings, norms, biases and heads."""
    matrices: list[Tensor] = []
    fast: list[Tensor] = []
    slow: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if not stage.with_chats and "visual" not in name:
            continue
        if parameter.ndim >= 2 and "embed_tokens" not in name and "pos_embed" not in name:
            matrices.append(parameter)
        elif "qkv.bias" in name or "pos_embed" in name:
            slow.append(parameter)
        else:
            fast.append(parameter)
    groups = [
        {"params": fast + list(heads.parameters()), "lr": stage.lr * 0.4},
        {"params": slow, "lr": stage.lr * 0.2},
    ]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    return [Muon(matrices, stage.lr), adam]


def _produce(maker: BatchMaker, first: int, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    torch.set_num_threads(1)
    for batch in maker.stream(first):
        queue.put(batch)


def batches_ahead(maker: BatchMaker, first: int) -> Iterator[Batch]:
    """Make batches in a second process while the model computes."""
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[Batch] = context.Queue(maxsize=6)
    worker = context.Process(target=_produce, args=(maker, first, queue), daemon=True)
    worker.start()
    try:
        while True:
            yield queue.get()
    finally:
        worker.kill()


def run_stage(name: str, stage: Stage, run_folder: Path, seed: int, start: str | None) -> None:
    """Train one stage from the checkpoint `start` of the run folder (None: fresh weights)."""
    model = Qwen3VLForConditionalGeneration(AutoConfig.from_pretrained(BUNDLED_FOLDER)).float()
    heads = DenseHeads(256)
    prepare_weights(model, seed)
    if start == COMMITTED:
        model = Qwen3VLForConditionalGeneration.from_pretrained(
            BUNDLED_FOLDER, dtype=torch.float32, local_files_only=True
        ).train()
    elif start is not None:
        kept = torch.load(run_folder / f"{start}.pt", weights_only=True)
        model.load_state_dict(kept["model"])
        heads.load_state_dict(kept["heads"])
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    maker = BatchMaker(
        tokenizer, seed + sum(map(ord, name)), stage.pictures, stage.mix, stage.grids,
        stage.with_chats, load_easy_vqa() if stage.with_chats else None, stage.text_weight,
        stage.silent_pictures,
    )  # fmt: skip
    stream = batches_ahead(maker, 0)
    steppers = optimizers(model, heads, stage)
    started, seen = time.monotonic(), 0
    means: dict[str, float] = {}
    for step in range(stage.steps):
        share = min(1.0, (step + 1) / 60) * (
            1.0 - (1.0 - stage.final_lr) * step / max(1, stage.steps)
        )
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = group.setdefault("first_lr", group["lr"]) * share
        batch = next(stream)
        losses = batch_loss(model, heads, batch, stage)
        torch.stack([*losses.values()]).sum().backward()
        torch.nn.utils.clip_grad_norm_([*model.parameters(), *heads.parameters()], 5.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        seen += len(batch.pixels)
        for key, loss in losses.items():
            means[key] = 0.95 * means.get(key, float(loss.detach())) + 0.05 * float(loss.detach())
        if step % 25 == 24:
            rate = seen / (time.monotonic() - started)
            text = " ".join(f"{key} {value:.3f}" for key, value in means.items())
            log.info("%s step %d pictures %d (%.1f/s) %s", name, step + 1, seen, rate, text)
        if step % 250 == 249 or step + 1 == stage.steps:
            save(model, heads, run_folder / f"{name}.pt")
    stream.close()  # type: ignore[attr-defined]


def save(model: Qwen3VLForConditionalGeneration, heads: DenseHeads, path: Path) -> None:
    """Keep weights in full precision, replacing the file in one step."""
    kept = {"model": model.state_dict(), "heads": heads.state_dict()}
    torch.save(kept, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def export(run_folder: Path, start: str, folder: Path) -> None:
    """Write the committed checkpoint: bf16 safetensors beside the configuration files."""
    model = Qwen3VLForConditionalGeneration(AutoConfig.from_pretrained(BUNDLED_FOLDER)).float()
    model.load_state_dict(torch.load(run_folder / f"{start}.pt", weights_only=True)["model"])
    model.tie_weights()
    generation, config = folder / "generation_config.json", folder / "config.json"
    kept = generation.read_bytes(), config.read_bytes()
    model.to(torch.bfloat16).save_pretrained(folder)
    generation.write_bytes(kept[0])
    config.write_bytes(kept[1])
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    """Run the stages that are named, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", default=[*STAGES], help="vision joint final export")
    parser.add_argument("--run-folder", type=Path, default=Path("runs/bundled"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", help="checkpoint of the run folder to start from, or committed")
    parser.add_argument("--steps", type=int, help="other than the stage's own number")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(args.threads)
    args.run_folder.mkdir(parents=True, exist_ok=True)
    start = args.start
    for name in args.stages:
        if name == "export":
            export(args.run_folder, start or "final", BUNDLED_FOLDER)
            continue
        stage = STAGES[name]
        if args.steps:
            stage = replace(stage, steps=args.steps)
        if name == "vision" and start is None and not (BUNDLED_FOLDER / "tokenizer.json").exists():
            write_folder(BUNDLED_FOLDER, args.seed)
        run_stage(name, stage, args.run_folder, args.seed, start)
        start = name


if __name__ == "__main__":
    main()
