"""One packed linear layer class per weight format; activations go in and come out in fp32.

kind   weights                      computes                    needs
fp32   fp32                         fp32                        nothing
bf16   bf16                         bf16 inputs, fp32 sums      AMX, AVX512_BF16, Arm (fast)
fp16   fp16 (bf16 values fit it)    fp32                        FBGEMM: x86 with AVX2
int8   int8, one scale per output   int8 pairs, int32 sums      FBGEMM: x86 with AVX2
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

WeightKind = Literal["fp32", "fp16", "int8", "bf16"]

MAX_PACK_ELEMENTS = 32 * 2**20
"""Rows packed at once hold at most this many weights, so the fp32 copy stays at 128 MiB."""

CACHED_ELEMENTS = 2**16
"""So many fp32 values, 256 KiB, are rounded at once."""

FP16_MAX = 65504.0
INT8_MAX = 127


class PackedLinear(Protocol):
    """A linear layer in its final weight format; safe to call from one thread at a time."""

    out_features: int
    in_features: int
    weight_bytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """Map fp32 rows (n, in_features) to fp32 rows (n, out_features)."""


class Fp32Linear:
    """Weights and arithmetic in fp32; shares the storage of an fp32 weight it is given."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight.to(torch.float32)
        self._bias = bias
        self.weight_bytes = self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class Bf16Linear:
    """Weights in bf16, inputs rounded to bf16: fast only where the CPU multiplies bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight.to(torch.bfloat16)
        self._bias = bias
        self.weight_bytes = self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        y = functional.linear(x.to(torch.bfloat16), self._weight).to(torch.float32)
        return y if self._bias is None else y.add_(self._bias)


class Fp16Linear:
    """Weights in fp16, widened to fp32 inside the kernel; inputs and sums stay fp32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._blocks = [
            torch.ops.quantized.linear_prepack_fp16(
                weight[rows].to(torch.float32), None if bias is None else bias[rows]
            )
            for rows in _row_blocks(weight)
        ]
        self._bias = bias
        self.weight_bytes = self.out_features * self.in_features * 2

    def single_block(self) -> Any:
        """Return the packed weights, or None where there is a bias or more than one block."""
        return _single(self._blocks, self._bias)

    def __call__(self, x: Tensor) -> Tensor:
        if len(self._blocks) == 1:
            return _tensor(torch.ops.quantized.linear_dynamic_fp16(x, self._blocks[0]))
        return torch.cat([torch.ops.quantized.linear_dynamic_fp16(x, b) for b in self._blocks], 1)


class Int8Linear:
    """Weights in int8 with one scale per output; each input row in int8 with its own scale.

    Both are first rotated in blocks by an orthogonal matrix of +-1: it leaves every product
    as it is, but spreads a very large value over its block, so that rounding costs all rows
    about the same. A row's result does not depend on the rows beside it. Idea: QuaRot
    (Ashkboos et al., 2024).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self.levels = int8_input_levels()
        self.rotation = _rotation(self.in_features)
        self._blocks = [_pack_int8(weight[rows], self.rotation) for rows in _row_blocks(weight)]
        self.weight_bytes = self.out_features * (self.in_features + 4)

    def single_block(self) -> Any:
        """Return the packed weights, or None where there is a bias or more than one block."""
        return _single(self._blocks, self._bias)

    def __call__(self, x: Tensor) -> Tensor:
        x = _rotate(x, self.rotation)
        step = torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True)
        step = step.clamp_min_(1e-30).div_(self.levels)  # rows of zeros: do not divide by zero
        scaled = x / step
        y = [_multiply_int8(scaled, block, self.levels) for block in self._blocks]
        total = (y[0] if len(y) == 1 else torch.cat(y, 1)).mul_(step)
        return total if self._bias is None else total.add_(self._bias)


def pack(weight: Tensor, bias: Tensor | None, kind: WeightKind) -> PackedLinear:
    """Bring a weight (out, in) and bias (out,) of any float dtype into the form of `kind`.

    The bias is kept in fp32. Weights outside fp16's range stay in fp32. Raises ValueError
    where this machine has no kernel for `kind`.
    """
    if kind not in available_kinds():
        raise ValueError(f"{kind} weights need FBGEMM, which this build of PyTorch does not have.")
    if bias is not None:
        bias = bias.to(torch.float32)
    if kind == "fp16" and not _fits_fp16(weight):
        kind = "fp32"
    match kind:
        case "fp32":
            return Fp32Linear(weight, bias)
        case "bf16":
            return Bf16Linear(weight, bias)
        case "fp16":
            return Fp16Linear(weight, bias)
        case "int8":
            return Int8Linear(weight, bias)


def available_kinds() -> tuple[WeightKind, ...]:
    """Return the formats this machine has kernels for, fast or not."""
    if torch.backends.quantized.engine in ("x86", "fbgemm"):
        return ("fp32", "bf16", "fp16", "int8")
    return ("fp32", "bf16")


@functools.cache
def int8_input_levels() -> int:
    """Return the largest int8 input that cannot overflow: 127 with VNNI, else 63.

    Without VNNI, FBGEMM adds pairs of products in 16 bits with saturation; multiplying
    the largest values shows which kernel this machine runs.
    """
    block = _pack_int8(torch.ones(32, 64), torch.eye(1))
    largest = torch.full((1, 64), float(INT8_MAX))
    exact = float(INT8_MAX * 64)
    y = _multiply_int8(largest, block, INT8_MAX)
    return INT8_MAX if bool(((y - exact).abs() < 1e-3 * exact).all()) else 63


@functools.cache
def _rotation(columns: int) -> Tensor:
    """Return the orthonormal Hadamard matrix whose size, at most 64, divides the columns."""
    matrix = torch.ones(1, 1)
    while len(matrix) < 64 and columns % (2 * len(matrix)) == 0:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix.div(len(matrix) ** 0.5)


def _row_blocks(weight: Tensor) -> list[slice]:
    """Cut the rows of a weight so that each block has at most MAX_PACK_ELEMENTS."""
    rows, columns = weight.shape
    step = max(1, MAX_PACK_ELEMENTS // columns)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _single(blocks: list[Any], bias: Tensor | None) -> Any:
    return blocks[0] if len(blocks) == 1 and bias is None else None


def _fits_fp16(weight: Tensor) -> bool:
    low, high = torch.aminmax(weight)
    return max(-float(low), float(high)) <= FP16_MAX


def _pack_int8(weight: Tensor, rotation: Tensor) -> Any:
    """Rotate a weight (out, in), round it to int8 with a scale per row, and pack it for FBGEMM.

    A few rows at a time, which stay in the processor's cache from step to step.
    """
    rounded = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(len(weight))
    rows_at_once = max(1, CACHED_ELEMENTS // weight.shape[1])
    for first in range(0, len(weight), rows_at_once):
        rows = slice(first, first + rows_at_once)
        part = _rotate(weight[rows].to(torch.float32), rotation)
        step = torch.linalg.vector_norm(part, math.inf, dim=1).clamp_min_(1e-30).div_(INT8_MAX)
        scale[rows] = step
        rounded[rows] = part.div_(step[:, None]).round_()
    _use_up_deprecation_warning()
    quantized = torch._make_per_channel_quantized_tensor(
        rounded, scale.to(torch.float64), torch.zeros(len(scale), dtype=torch.int64), 0
    )
    return torch.ops.quantized.linear_prepack(quantized, None)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Multiply every block of columns of x (n, columns) by the rotation."""
    return (x.reshape(-1, len(rotation)) @ rotation).view(x.shape)


def _multiply_int8(x: Tensor, block: Any, levels: int) -> Tensor:
    """Round inputs within +-levels to integers and multiply them by a packed block."""
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return _tensor(multiply(x, 1.0, levels + 1, block))


@functools.cache
def _use_up_deprecation_warning() -> None:
    """Take PyTorch's once-per-process notice about quantized tensors; torch is pinned."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deprecated", category=UserWarning)
        torch._make_per_channel_quantized_tensor(
            torch.zeros(1, 1, dtype=torch.int8),
            torch.ones(1, dtype=torch.float64),
            torch.zeros(1, dtype=torch.int64),
            0,
        )


def _tensor(value: Any) -> Tensor:
    """Give the result of an untyped operator its type."""
    assert isinstance(value, Tensor)
    return value
