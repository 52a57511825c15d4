"""The memory plan: a smaller precision, then vision layers, then decoder layers, then a refusal."""

import pytest

from vlm.errors import MemoryLimitError
from vlm.memory_plan import MemoryPlan, WeightUnit, plan_memory, smaller_plans
from vlm.precision import PrecisionPlan

ALL_KINDS = ("fp32", "bf16", "fp16", "int8")
FP32 = PrecisionPlan("fp32", "fp32", "fp32", "asked for", {"fp32_1_row_s": 0.1})
MILLION = 10**6
WORKING = 50 * MILLION


def unit(name: str, part: str, elements: int, can_offload: bool = True) -> WeightUnit:
    return WeightUnit(name, part, elements, 1000, elements // 8, can_offload)


UNITS = [
    unit("head", "language", 20 * MILLION, can_offload=False),
    *(unit(f"layer {i}", "language", 10 * MILLION) for i in range(4)),
    *(unit(f"block {i}", "vision", 5 * MILLION) for i in range(4)),
]
SMALL = 4 * 1000 * len(UNITS) + WORKING
FP32_NEED = 4 * 80 * MILLION + SMALL
MIXED_NEED = 2 * 80 * MILLION + SMALL
SMALLEST_NEED = 2 * 20 * MILLION + round(1.01 * 60 * MILLION) + SMALL
READ_BACK = 8 * 10 * MILLION // 8
"""One matrix of a layer, as stored and as fp32."""


def plan(available_bytes: int, wanted: PrecisionPlan = FP32) -> MemoryPlan:
    candidates = [wanted, *smaller_plans(wanted, ALL_KINDS)]
    return plan_memory(UNITS, candidates, available_bytes, WORKING)


def test_what_fits_is_left_as_it_is() -> None:
    chosen = plan(FP32_NEED)
    assert chosen == MemoryPlan(FP32, (), FP32_NEED, FP32_NEED, "")


@pytest.mark.parametrize(
    ("available", "name", "vision", "language", "need"),
    [
        (FP32_NEED - 1, "mixed", "fp16", "fp16", MIXED_NEED),
        (MIXED_NEED - 1, "int8", "fp16", "int8", SMALLEST_NEED),
    ],
)
def test_a_smaller_precision_comes_first(
    available: int, name: str, vision: str, language: str, need: int
) -> None:
    chosen = plan(available)
    precision = chosen.precision
    assert (precision.name, precision.vision, precision.language) == (name, vision, language)
    assert chosen.need_bytes == need and chosen.offloaded == ()
    assert "Memory is short: fp32 precision needs" in chosen.notice
    assert precision.reason == chosen.notice
    assert precision.measurements == FP32.measurements


def test_vision_layers_go_to_disk_before_decoder_layers() -> None:
    one_block = 2 * 5 * MILLION
    all_blocks = SMALLEST_NEED + READ_BACK - 4 * one_block
    assert plan(all_blocks).offloaded == ("block 0", "block 1", "block 2", "block 3")
    less = plan(all_blocks - 1)
    assert less.offloaded == ("block 0", "block 1", "block 2", "block 3", "layer 0")
    assert less.need_bytes == all_blocks - round(1.01 * 10 * MILLION)
    assert "4 vision layers" in less.notice and "1 decoder layers" in less.notice


def test_refused_when_nothing_fits_with_both_numbers() -> None:
    least = SMALL + round(1.01 * 20 * MILLION) + READ_BACK
    assert len(plan(least).offloaded) == 8
    with pytest.raises(MemoryLimitError, match=r"needs at least 76.5 MiB.* but 76.5 MiB is free"):
        plan(least - 1)
    with pytest.raises(MemoryLimitError, match=r"smaller model"):
        plan(0)


def test_smaller_plans_are_smaller_and_have_kernels() -> None:
    mixed, int8 = smaller_plans(FP32, ALL_KINDS)
    assert smaller_plans(mixed, ALL_KINDS) == [int8]
    assert smaller_plans(int8, ALL_KINDS) == []
    native = PrecisionPlan("mixed", "fp32", "bf16", "", {})
    assert smaller_plans(native, ALL_KINDS)[0].language == "int8"
    without_fbgemm = smaller_plans(FP32, ("fp32", "bf16"))
    assert [(p.vision, p.language) for p in without_fbgemm] == [("fp32", "bf16"), ("bf16", "bf16")]
