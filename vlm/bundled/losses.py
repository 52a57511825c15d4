"""What training makes small: the errors of dense labels and of answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from vlm.bundled.batches import Batch
from vlm.bundled.heads import DenseHeads
from vlm.bundled.labels import CHARACTER_SLOTS, IGNORED, Labels
from vlm.bundled.network import Pointing, encode_pictures, run_text
from vlm.bundled.stages import Stage

POINTING_WEIGHT = 0.15
CHARACTER_WEIGHTS = (1.0, 0.6, 0.3)


def dense_loss(heads: DenseHeads, embeddings: Tensor, labels: Labels) -> dict[str, Tensor]:
    """Compare what the heads read off every visual token with the truth."""
    kind, colour, background, *rest = heads(embeddings)
    characters, (box, ninth, *digits) = rest[:CHARACTER_SLOTS], rest[CHARACTER_SLOTS:]
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
        twentieths = (true_box * 20).round().long()
        for weight, name, part, truth in (
            (0.15, "edges", digits[:4], twentieths.div(2, rounding_mode="floor")),
            (0.15, "halves", digits[4:], twentieths % 2),
        ):
            each = [F.cross_entropy(edge[things], truth[:, i]) for i, edge in enumerate(part)]
            losses[name] = weight * torch.stack(each).sum()
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
    embeddings, deepstack = encode_pictures(
        model, torch.from_numpy(batch.pixels), stage.blocks_train
    )
    losses = {
        name: stage.dense_weight * loss
        for name, loss in dense_loss(heads, embeddings, batch.labels).items()
    }
    if stage.with_chats:
        segments = torch.from_numpy(batch.segments)
        weights = torch.from_numpy(batch.weights)
        hidden, unseen = run_text(
            model,
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.position_ids),
            attention_mask(segments),
            embeddings.flatten(0, 1),
            [features.flatten(0, 1) for features in deepstack],
            Pointing(torch.from_numpy(batch.shown), torch.from_numpy(batch.asked), weights),
        )
        losses["unseen"] = POINTING_WEIGHT * unseen
        targets = torch.from_numpy(batch.targets)
        asked = targets != IGNORED
        each = F.cross_entropy(model.lm_head(hidden[asked]), targets[asked], reduction="none")
        # Between equal weight for tokens, with long answers deciding alone, and for answers.
        share = weights[asked].sqrt()
        losses["answers"] = (each * share).sum() / share.sum()
    return losses
