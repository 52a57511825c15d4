"""Choose the weight formats: what was asked for, or what a short measurement finds fastest.

plan    vision         language                      why
fp32    fp32           fp32                          the reference; the most memory
mixed   fp16 or fp32   fp16 or bf16, the fastest     half the bytes per token
int8    fp16           int8                          a quarter of the bytes; only when asked for

Arithmetic with fp16 weights is fp32, and the weights of a bf16 checkpoint fit fp16; so the
vision tower computes in fp32 in every plan, whatever its weights are kept in.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from vlm.errors import ConfigError
from vlm.hardware import this_machine
from vlm.linear import WeightKind, available_kinds, pack

logger = logging.getLogger(__name__)

PlanName = Literal["fp32", "mixed", "int8"]

MEASURE_S = 0.8
"""After this no further call is begun."""
WEIGHT_SHAPE = (2048, 2048)
"""The attention output of Qwen3-VL-2B: 17 MB in fp32."""
FLUSH_BYTES = 64 * 2**20
PROMPT_ROWS = 256
ANSWER_ROWS = 100
"""A typical answer: one prompt of PROMPT_ROWS, then so many tokens one by one."""

_KERNELS: dict[WeightKind, str] = {
    "fp32": "fp32 weights",
    "fp16": "16-bit weights with fp32 arithmetic (FBGEMM)",
    "bf16": "native bf16 weights",
}


@dataclass(frozen=True)
class PrecisionPlan:
    """Which weight format each part of the model gets, and why."""

    name: PlanName
    vision: WeightKind
    language: WeightKind
    reason: str
    """One sentence for people."""
    measurements: dict[str, float]
    """Seconds by "<kind>_1_row_s" and "<kind>_256_rows_s"; empty when nothing was measured."""


def choose_precision(
    requested: Literal["auto", "fp32", "mixed", "int8"], verdict_file: Path | None
) -> PrecisionPlan:
    """Return the plan for a request; auto and mixed measure for about a second, once.

    verdict_file: JSON in which measurements are remembered per machine, or None. Raises
    ConfigError for int8 where this build of PyTorch has no kernels for it.
    """
    if requested == "fp32":
        return PrecisionPlan("fp32", "fp32", "fp32", "fp32 was asked for.", {})
    if requested == "int8":
        if "int8" not in available_kinds():
            raise ConfigError(
                "Precision int8 needs PyTorch's FBGEMM kernels, which exist for x86 CPUs with "
                "AVX2 only. Use --precision mixed."
            )
        reason = "int8 was asked for: a quarter of the bytes of fp32 per token."
        return PrecisionPlan("int8", "fp16", "int8", reason, {})
    measurements = _recall(verdict_file)
    if measurements is None:
        measurements = measure()
        _remember(verdict_file, measurements)
    return fastest_plan(measurements)


def fastest_plan(measurements: dict[str, float]) -> PrecisionPlan:
    """Return the plan whose language weights make a typical answer fastest."""
    kinds = _measured_kinds(measurements)
    if "fp16" in available_kinds() and "fp16" not in kinds:
        reason = (
            "16-bit weights (FBGEMM) are the usual best on x86; this machine was too busy to "
            "measure, so the next start measures again."
        )
        return PrecisionPlan("mixed", "fp16", "fp16", reason, measurements)
    best = min(kinds, key=lambda kind: _answer_s(measurements, kind))
    if best == "fp32":
        others = " and ".join(_KERNELS[kind] for kind in kinds if kind != "fp32")
        reason = f"fp32 is fastest on this CPU; measured against {others or 'nothing else'}."
        return PrecisionPlan("fp32", "fp32", "fp32", reason, measurements)
    token, prompt = (
        measurements[f"fp32_{rows}_s"] / measurements[f"{best}_{rows}_s"]
        for rows in ("1_row", "256_rows")
    )
    reason = (
        f"{_KERNELS[best]} are fastest on this CPU: a token {token:.1f}x and a prompt "
        f"{prompt:.1f}x as fast as fp32, measured here."
    )
    # Bf16 kernels round the inputs too, which the vision tower is spared.
    vision: WeightKind = "fp16" if best == "fp16" else "fp32"
    return PrecisionPlan("mixed", vision, best, reason[0].upper() + reason[1:], measurements)


@torch.inference_mode()
def measure() -> dict[str, float]:
    """Time each format at the model's shapes: see PrecisionPlan.measurements.

    The formats take turns, so that a busy moment hurts all of them. Those for which
    the time does not suffice, which takes a busy machine, are left out.
    """
    deadline = time.perf_counter() + MEASURE_S
    weight = torch.randn(64, WEIGHT_SHAPE[1]).repeat(WEIGHT_SHAPE[0] // 64, 1)
    flush = torch.ones(FLUSH_BYTES // 4)  # zeros would be one page of memory
    layers = {kind: pack(weight, None, kind) for kind in _candidates()}
    times: dict[str, float] = {}
    for rows, repetitions in ((1, 4), (PROMPT_ROWS, 2)):
        x = torch.randn(rows, WEIGHT_SHAPE[1])
        label = "1_row_s" if rows == 1 else f"{rows}_rows_s"
        for kind, layer in list(layers.items()) * repetitions:
            key = f"{kind}_{label}"
            if kind == "fp32" and key not in times or time.perf_counter() < deadline:
                flush.sum()  # weights must come from memory, as in the whole model
                start = time.perf_counter()
                layer(x)
                times[key] = min(times.get(key, math.inf), time.perf_counter() - start)
    complete = [kind for kind in layers if f"{kind}_{PROMPT_ROWS}_rows_s" in times]
    return {key: value for key, value in times.items() if key.partition("_")[0] in complete}


def _candidates() -> list[WeightKind]:
    """Return the formats worth measuring, the most promising after fp32 first."""
    machine = this_machine()
    is_bf16_native = any(map(machine.has, ("amx_bf16", "avx512_bf16", "bf16")))
    order: list[WeightKind] = ["fp32", "bf16", "fp16"] if is_bf16_native else [
        "fp32", "fp16", "bf16"
    ]  # fmt: skip
    return [kind for kind in order if kind in available_kinds()]


def _answer_s(measurements: dict[str, float], kind: WeightKind) -> float:
    return measurements[f"{kind}_256_rows_s"] + ANSWER_ROWS * measurements[f"{kind}_1_row_s"]


def _measured_kinds(measurements: dict[str, float]) -> list[WeightKind]:
    return [kind for kind in _KERNELS if f"{kind}_256_rows_s" in measurements]


def _machine_key() -> str:
    """Name all that the verdict depends on."""
    machine = this_machine()
    sets = " ".join(machine.instruction_sets)
    threads = torch.get_num_threads()
    return f"{machine.cpu_name} | {sets} | torch {torch.__version__} | {threads} threads"


def _read_verdicts(verdict_file: Path) -> dict[str, dict[str, float]]:
    try:
        verdicts = json.loads(verdict_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # missing or damaged: measure anew
    return verdicts if isinstance(verdicts, dict) else {}


def _recall(verdict_file: Path | None) -> dict[str, float] | None:
    """Return what was measured on this very machine before, if it is complete and sane."""
    if verdict_file is None:
        return None
    found = _read_verdicts(verdict_file).get(_machine_key())
    wanted = {f"{kind}_{rows}_s" for kind in _candidates() for rows in ("1_row", "256_rows")}
    if not isinstance(found, dict) or found.keys() != wanted:
        return None
    if not all(isinstance(value, float) and value > 0 for value in found.values()):
        return None
    return found


def _remember(verdict_file: Path | None, measurements: dict[str, float]) -> None:
    """Add this machine's measurements to the file; a file that cannot be written is no fault."""
    if verdict_file is None or _measured_kinds(measurements) != sorted(
        _candidates(), key=list(_KERNELS).index
    ):
        return
    verdicts = _read_verdicts(verdict_file) | {_machine_key(): measurements}
    fresh = verdict_file.with_name(f"{verdict_file.name}.{os.getpid()}")
    try:
        verdict_file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(verdicts, indent=2), encoding="utf-8")
        fresh.replace(verdict_file)
    except OSError as error:
        logger.warning("the precision verdict could not be kept in %s: %s", verdict_file, error)
