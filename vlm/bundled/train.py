"""Trains the built-in model: `python -m vlm.bundled.train`.

Four stages: "vision" and "reading" teach the vision tower from dense labels, "language" the
language model from chats about what that tower sees, "final" everything together while the
steps shrink to nothing. Each stage reads and writes the run folder, so it can be repeated alone.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, Qwen3VLForConditionalGeneration

from vlm.bundled import BUNDLED_FOLDER
from vlm.bundled.batches import Batch, BatchMaker
from vlm.bundled.easy_vqa_split import load_easy_vqa
from vlm.bundled.fresh_weights import prepare_weights
from vlm.bundled.heads import DenseHeads
from vlm.bundled.losses import batch_loss
from vlm.bundled.muon import Muon
from vlm.bundled.stages import STAGES, Stage
from vlm.bundled.tokenizer import write_folder

log = logging.getLogger(__name__)

COMMITTED = "committed"
"""Start from the weights that are committed; the dense heads, used in training only, are new."""
WARM_UP_STEPS = 60
LOGGED_EVERY, KEPT_EVERY = 25, 250
"""Steps between two lines of the log, and between two checkpoints."""


def starting_weights(
    start: str | None, run_folder: Path, seed: int
) -> tuple[Qwen3VLForConditionalGeneration, DenseHeads]:
    """Return fresh weights (start None), the committed ones, or those of a checkpoint."""
    heads = DenseHeads(256)
    if start == COMMITTED:
        model = Qwen3VLForConditionalGeneration.from_pretrained(
            BUNDLED_FOLDER, dtype=torch.float32, local_files_only=True
        ).train()
        return model, heads
    model = Qwen3VLForConditionalGeneration(AutoConfig.from_pretrained(BUNDLED_FOLDER)).float()
    if start is None:
        prepare_weights(model, seed)
    else:
        kept = torch.load(run_folder / f"{start}.pt", weights_only=True)
        model.load_state_dict(kept["model"])
        heads.load_state_dict(kept["heads"])
    return model, heads


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
        if not stage.blocks_train and "visual" in name and "merger" not in name:
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


class Trainer:
    """One stage on its way."""

    def __init__(
        self, model: Qwen3VLForConditionalGeneration, heads: DenseHeads, stage: Stage
    ) -> None:
        self._model, self._heads, self._stage = model, heads, stage
        self._steppers = optimizers(model, heads, stage)
        self._began = time.monotonic()
        self._pictures = 0
        self._means: dict[str, float] = {}

    def step(self, number: int, batch: Batch) -> None:
        """Learn from one batch; the step size rises at first, then falls in a line."""
        stage = self._stage
        fallen = (1.0 - stage.final_lr) * number / max(1, stage.steps)
        share = min(1.0, (number + 1) / WARM_UP_STEPS) * (1.0 - fallen)
        for stepper in self._steppers:
            for group in stepper.param_groups:
                group["lr"] = group.setdefault("first_lr", group["lr"]) * share
        losses = batch_loss(self._model, self._heads, batch, stage)
        torch.stack([*losses.values()]).sum().backward()
        every = [*self._model.parameters(), *self._heads.parameters()]
        torch.nn.utils.clip_grad_norm_(every, 5.0)
        for stepper in self._steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        self._pictures += len(batch.pixels)
        for key, loss in losses.items():
            value = float(loss.detach())
            self._means[key] = 0.95 * self._means.get(key, value) + 0.05 * value

    def describe(self) -> str:
        """Say how much was seen, how fast, and the losses of the last steps."""
        rate = self._pictures / (time.monotonic() - self._began)
        losses = " ".join(f"{key} {value:.3f}" for key, value in self._means.items())
        return f"pictures {self._pictures} ({rate:.1f}/s) {losses}"


def run_stage(name: str, stage: Stage, run_folder: Path, seed: int, start: str | None) -> None:
    """Train one stage from the checkpoint `start` of the run folder (None: fresh weights)."""
    model, heads = starting_weights(start, run_folder, seed)
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    maker = BatchMaker(
        tokenizer, seed + sum(map(ord, name)), stage.pictures, stage.mix, stage.grids,
        stage.with_chats, load_easy_vqa() if stage.with_chats else None, stage.text_weight,
        stage.silent_pictures,
    )  # fmt: skip
    stream = batches_ahead(maker, 0)
    trainer = Trainer(model, heads, stage)
    for number in range(stage.steps):
        trainer.step(number, next(stream))
        done = number + 1
        if done % LOGGED_EVERY == 0:
            log.info("%s step %d %s", name, done, trainer.describe())
        if done % KEPT_EVERY == 0 or done == stage.steps:
            save(model, heads, run_folder / f"{name}.pt")
    stream.close()  # type: ignore[attr-defined]


def save(model: Qwen3VLForConditionalGeneration, heads: DenseHeads, path: Path) -> None:
    """Keep weights in full precision, replacing the file in one step."""
    kept = {"model": model.state_dict(), "heads": heads.state_dict()}
    torch.save(kept, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def export(run_folder: Path, start: str, folder: Path) -> None:
    """Write the committed checkpoint: bf16 safetensors beside the configuration files."""
    weights: dict[str, Tensor] = torch.load(run_folder / f"{start}.pt", weights_only=True)["model"]
    # The output head is tied to the embeddings and is not stored twice.
    kept = {
        name: weight.to(torch.bfloat16).contiguous()
        for name, weight in weights.items()
        if name != "lm_head.weight"
    }
    path = folder / "model.safetensors"
    save_file(kept, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes for the owner alone


def main() -> None:
    """Run the stages that are named, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", default=[*STAGES], help=f"{' '.join(STAGES)} export")
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
