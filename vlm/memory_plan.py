"""Which precision fits the free memory, and what must stay on disk; numbers in, plan out.

The order is the one that costs least: a smaller precision first, then the vision layers on
disk (read once per picture), then decoder layers (read at every token), then a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vlm.errors import MemoryLimitError
from vlm.linear import WeightKind
from vlm.precision import PlanName, PrecisionPlan
from vlm.units import format_bytes

Part = Literal["vision", "language"]
KIND_BYTES: dict[WeightKind, float] = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.01}
"""Bytes per weight; int8 has its scales on top."""


@dataclass(frozen=True)
class WeightUnit:
    """Weights that are packed together: a layer, a merger, the output head."""

    name: str
    """What the names of its tensors start with."""
    part: Part
    matrix_elements: int
    """Weights in matrices, which take the chosen format."""
    other_elements: int
    """Biases, norms and positions, always fp32."""
    largest_matrix: int
    can_offload: bool
    """True for layers: the rest is needed at every step and is small, or is one matrix."""

    def nbytes(self, plan: PrecisionPlan) -> int:
        """Bytes in memory under a precision."""
        kind = plan.vision if self.part == "vision" else plan.language
        return round(self.matrix_elements * KIND_BYTES[kind]) + 4 * self.other_elements

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that stay in memory when its matrices stay on disk."""
        return 4 * self.other_elements


@dataclass(frozen=True)
class MemoryPlan:
    """How a model is loaded."""

    precision: PrecisionPlan
    offloaded: tuple[str, ...]
    """Names of the units whose matrices stay on disk."""
    need_bytes: int
    """Weights in memory and working space."""
    available_bytes: int
    notice: str = ""
    """What was given up and why, or empty."""


def smaller_plans(plan: PrecisionPlan, kinds: Sequence[WeightKind]) -> list[PrecisionPlan]:
    """Return what may replace a precision when memory is short, largest first.

    `kinds`: the formats that this machine has kernels for.
    """
    rows: list[tuple[PlanName, WeightKind, WeightKind]]
    if "fp16" in kinds:
        rows = [("mixed", "fp16", "fp16"), ("int8", "fp16", "int8")]
    else:
        rows = [("mixed", "fp32", "bf16"), ("mixed", "bf16", "bf16")]
    plans = [
        PrecisionPlan(name, vision, language, plan.reason, plan.measurements)
        for name, vision, language in rows
        if language in kinds
    ]
    # Another format of the same size would save nothing where the most memory is.
    size = [KIND_BYTES[plan.vision], KIND_BYTES[plan.language]]
    return [
        p
        for p in plans
        if [KIND_BYTES[p.vision], KIND_BYTES[p.language]] < size
        and (p.language == plan.language or KIND_BYTES[p.language] < size[1])
    ]


def plan_memory(
    units: Sequence[WeightUnit],
    candidates: Sequence[PrecisionPlan],
    available_bytes: int,
    working_bytes: int,
) -> MemoryPlan:
    """Choose the first precision that fits, else leave layers of the last one on disk.

    `candidates`: the wanted precision, then smaller ones. `working_bytes`: what answering
    needs beside the weights. Raises MemoryLimitError when nothing fits.
    """
    wanted = candidates[0]
    wanted_bytes = _need(units, wanted, working_bytes)
    for plan in candidates:
        need_bytes = _need(units, plan, working_bytes)
        if need_bytes <= available_bytes:
            notice = ""
            if plan is not wanted:
                notice = (
                    f"{_shortage(wanted, wanted_bytes, available_bytes)} It runs in {plan.name} "
                    f"precision (vision {plan.vision}, language {plan.language}) instead, which "
                    f"needs {format_bytes(need_bytes)}."
                )
                plan = replace(plan, reason=notice)
            return MemoryPlan(plan, (), need_bytes, available_bytes, notice)
    smallest = min(candidates, key=lambda plan: _need(units, plan, working_bytes))
    return _offload(units, smallest, available_bytes, working_bytes)


def _need(units: Sequence[WeightUnit], plan: PrecisionPlan, working_bytes: int) -> int:
    return sum(unit.nbytes(plan) for unit in units) + working_bytes


def _offload(
    units: Sequence[WeightUnit], plan: PrecisionPlan, available_bytes: int, working_bytes: int
) -> MemoryPlan:
    """Leave as many layers on disk as it takes. Raises MemoryLimitError."""
    whole = need_bytes = _need(units, plan, working_bytes)
    # Vision first: it is read once per picture, a decoder layer at every token.
    order = sorted(
        (unit for unit in units if unit.can_offload), key=lambda unit: unit.part != "vision"
    )
    offloaded: list[WeightUnit] = []
    for unit in order:
        if not offloaded:
            # One matrix at a time is read back, widened to fp32 beside its stored form.
            need_bytes += 8 * max(unit.largest_matrix for unit in order)
        offloaded.append(unit)
        need_bytes -= unit.nbytes(plan) - unit.offloaded_bytes
        if need_bytes <= available_bytes:
            break
    if need_bytes > available_bytes:
        raise MemoryLimitError(
            f"This model needs at least {format_bytes(need_bytes)} of memory, even in {plan.name} "
            f"precision with its layers left on disk, but {format_bytes(available_bytes)} is "
            "free. Close other programs, raise the container's memory limit, or choose a smaller "
            "model (--model bundled takes least)."
        )
    counts = {part: sum(u.part == part for u in offloaded) for part in ("vision", "language")}
    notice = (
        f"{_shortage(plan, whole, available_bytes)} {counts['vision']} vision layers (read once "
        f"per picture) and {counts['language']} decoder layers (read for every word) stay on "
        "disk, so answers are slow. Close other programs and start again, or choose a smaller "
        "model."
    )
    names = tuple(unit.name for unit in offloaded)
    reasoned = replace(plan, reason=notice)
    return MemoryPlan(reasoned, names, need_bytes, available_bytes, notice)


def _shortage(plan: PrecisionPlan, need_bytes: int, available_bytes: int) -> str:
    return (
        f"Memory is short: {plan.name} precision needs {format_bytes(need_bytes)}, "
        f"{format_bytes(available_bytes)} is free."
    )
