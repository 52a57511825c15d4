"""Measure what a precision costs: how often, and how much, it would answer otherwise than fp32.

The fp32 model answers; every other precision is then led along the same answers, and its
distribution over the next token is compared at each of them. The models are loaded one after
the other, never two at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from vlm.chat import Message
from vlm.checkpoint import load_model
from vlm.commands.doctor_pictures import QUESTIONS, draw_pictures
from vlm.errors import ConfigError, MemoryLimitError
from vlm.images import Picture
from vlm.linear import available_kinds
from vlm.model import QwenVL
from vlm.patches import measure_picture
from vlm.positions import position_ids
from vlm.precision import PrecisionPlan, choose_precision
from vlm.prompt import Prompt
from vlm.units import format_bytes
from vlm.vision import VisionFeatures

ANSWER_TOKENS = 16
"""Of each answer so many are compared."""
VISUAL_TOKENS = 256

FP32 = choose_precision("fp32", None)


@dataclass(frozen=True)
class PrecisionCost:
    """How one precision compares with fp32 along the answers of fp32."""

    precision: str
    vision: str
    language: str
    answers: int
    tokens: int
    """Next tokens that were compared, over all answers."""
    top1_agreement: float
    """Share of them whose most likely token is the same, 0..1."""
    mean_kl: float
    """Mean over them of KL(fp32 || this precision), in nats; 0 is no difference."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The tokens of an answer, and how likely each token was at each of them."""

    token_ids: list[int]
    log_probs: Tensor
    """(tokens, vocab_size) fp32; row i is for the place of token_ids[i]."""


def plans_to_compare(chosen: PrecisionPlan) -> list[PrecisionPlan]:
    """Return the chosen precision and int8 where it exists, fp32 left out. Raises ConfigError."""
    plans = [chosen] if chosen.name != "fp32" else []
    if chosen.name != "int8" and "int8" in available_kinds():
        plans.append(choose_precision("int8", None))
    if not plans:
        raise ConfigError(
            f"There is nothing to compare with fp32: {chosen.reason} Run this on the machine, and "
            "with the --precision, that the model is to be used with."
        )
    return plans


def compare_precisions(
    folder: Path, plans: Sequence[PrecisionPlan], needs: Mapping[str, int], spare_bytes: int
) -> list[PrecisionCost]:
    """Load the model of a folder in fp32, then in each plan, and compare what they answer.

    `needs`: bytes of memory by precision. `spare_bytes`: what may be taken before any of them
    is loaded. Raises MemoryLimitError when one does not fit, CheckpointError.
    """
    short = max((FP32, *plans), key=lambda plan: needs.get(plan.name, 0))
    if needs.get(short.name, 0) > spare_bytes:
        raise _too_large(short, needs[short.name], spare_bytes)
    pictures = draw_pictures()
    model = _load(folder, FP32, spare_bytes)
    answers = _answer_all(model, pictures, None)
    costs = []
    for plan in plans:
        del model  # before the next is loaded
        gc.collect()
        model = _load(folder, plan, spare_bytes)
        costs.append(cost_of(plan, answers, _answer_all(model, pictures, answers)))
    return costs


def cost_of(
    plan: PrecisionPlan, answers: Sequence[Answer], others: Sequence[Answer]
) -> PrecisionCost:
    """Compare the distributions along the same answers, fp32's first."""
    agreed, divergences = [], []
    for fp32, other in zip(answers, others, strict=True):
        agreed.append(fp32.log_probs.argmax(1) == other.log_probs.argmax(1))
        divergences.append(_kl(fp32.log_probs, other.log_probs))
    agreement = torch.cat(agreed).to(torch.float64)
    return PrecisionCost(
        precision=plan.name,
        vision=plan.vision,
        language=plan.language,
        answers=len(answers),
        tokens=len(agreement),
        top1_agreement=float(agreement.mean()),
        mean_kl=float(torch.cat(divergences).mean()),
    )


def _kl(fp32: Tensor, other: Tensor) -> Tensor:
    """KL(fp32 || other) of log probabilities (n, vocab_size), one value a row, in nats."""
    fp32, other = fp32.to(torch.float64), other.to(torch.float64)
    # What rounding leaves below zero is zero.
    return functional.kl_div(other, fp32, reduction="none", log_target=True).sum(1).clamp_min(0)


def _load(folder: Path, plan: PrecisionPlan, spare_bytes: int) -> QwenVL:
    sys.stderr.write(f"Loading the model in {plan.name} precision and letting it answer ...\n")
    model = load_model(folder, plan, available_bytes=spare_bytes)
    used = model.info.precision
    if (used.vision, used.language) != (plan.vision, plan.language):
        raise _too_large(plan, model.info.weight_bytes, spare_bytes)
    return model


def _too_large(plan: PrecisionPlan, need_bytes: int, spare_bytes: int) -> MemoryLimitError:
    return MemoryLimitError(
        f"Comparing needs the whole model in {plan.name} precision, more than "
        f"{format_bytes(need_bytes)} of memory, but {format_bytes(spare_bytes)} may be taken. "
        "Close other programs, or run it on a machine with more memory."
    )


def _answer_all(
    model: QwenVL, pictures: Sequence[Picture], led_by: Sequence[Answer] | None
) -> list[Answer]:
    """Ask every question about every picture; `led_by`: answers to go along with, in order."""
    answers: list[Answer] = []
    for picture in pictures:
        measured = measure_picture(picture, model.geometry, VISUAL_TOKENS)
        patched = measured.patch()
        features = model.vision.encode(patched.pixel_values, patched.grid_thw)
        for question in QUESTIONS:
            message = Message("user", question, (picture,))
            prompt = model.tokenizer.encode([message], [measured])
            token_ids = None if led_by is None else led_by[len(answers)].token_ids
            answers.append(_answer(model, prompt, features, token_ids))
    return answers


@torch.inference_mode()
def _answer(
    model: QwenVL, prompt: Prompt, features: VisionFeatures, led_by: Sequence[int] | None
) -> Answer:
    """Answer greedily, or along given tokens; each token goes through the model on its own."""
    decoder, kv_cache = model.decoder, model.decoder.new_cache()
    positions, next_position = position_ids(prompt, model.geometry.merge_size)
    (span,) = prompt.spans
    visual_index = torch.arange(span.start, span.start + span.length)
    hidden = decoder.embed(prompt.token_ids)
    hidden[visual_index] = features.embeddings
    hidden = decoder.forward(hidden, positions, kv_cache, features.deepstack, visual_index)
    token_ids: list[int] = []
    rows: list[Tensor] = []
    while True:
        rows.append(decoder.logits(hidden[-1:])[0].log_softmax(0))
        token_ids.append(int(rows[-1].argmax()) if led_by is None else led_by[len(token_ids)])
        if _is_over(token_ids, led_by, model):
            return Answer(token_ids, torch.stack(rows))
        position = torch.full((3, 1), next_position)
        hidden = decoder.forward(decoder.embed(token_ids[-1:]), position, kv_cache)
        next_position += 1


def _is_over(token_ids: Sequence[int], led_by: Sequence[int] | None, model: QwenVL) -> bool:
    if led_by is not None:
        return len(token_ids) == len(led_by)
    return len(token_ids) == ANSWER_TOKENS or token_ids[-1] in model.tokenizer.eos_token_ids
