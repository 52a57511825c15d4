"""A decoder layer for a few rows as one compiled call.

With one row per token the kernels are so short that Python between them costs as much as
many of them together. TorchScript runs the same kernels in the same order without Python,
so the result is the same to the last bit.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlm.linear import Fp16Linear, Int8Linear, PackedLinear

logger = logging.getLogger(__name__)

MOST_ROWS = 8
"""With more rows the kernels are long enough."""


def _rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    norm = torch.ops.aten.linalg_vector_norm(x, 2.0, [-1], True)
    scale = torch.addcmul(eps, norm, norm, value=1.0 / x.size(-1)).rsqrt_()
    return (x * scale).mul_(weight)


def _multiply(
    x: Tensor,
    block: torch.classes.quantized.LinearPackedParamsBase,  # type: ignore[name-defined]
    rotation: Tensor | None,
    levels: int,
) -> Tensor:
    """Fp16Linear without a rotation, else Int8Linear, both of one block without bias."""
    if rotation is None:
        return torch.ops.quantized.linear_dynamic_fp16(x, block)  # type: ignore[no-any-return]
    x = (x.reshape(-1, rotation.size(0)) @ rotation).view(x.shape)
    step = torch.ops.aten.linalg_vector_norm(x, math.inf, [1], True)
    step = step.clamp_min_(1e-30).div_(levels)
    y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x / step, 1.0, levels + 1, block
    )
    return y.mul_(step)  # type: ignore[no-any-return]


def _layer(
    hidden: Tensor,
    norms: tuple[Tensor, Tensor, Tensor],
    eps: Tensor,
    blocks: tuple[
        torch.classes.quantized.LinearPackedParamsBase,  # type: ignore[name-defined]
        torch.classes.quantized.LinearPackedParamsBase,  # type: ignore[name-defined]
        torch.classes.quantized.LinearPackedParamsBase,  # type: ignore[name-defined]
        torch.classes.quantized.LinearPackedParamsBase,  # type: ignore[name-defined]
    ],
    rotations: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    levels: int,
    rope: tuple[Tensor, Tensor],
    heads: int,
    keys: list[Tensor],
    values: list[Tensor],
    starts: list[int],
    rows: list[int],
    masks: list[Tensor | None],
) -> Tensor:
    """One layer of vlm/decoder.py; keys, values, starts, rows and masks are by segment."""
    input_norm, post_norm, qk_norm = norms
    cos, sin = rope
    qkv = _multiply(_rms_norm(hidden, input_norm, eps), blocks[0], rotations[0], levels)
    qkv = qkv.view(hidden.size(0), -1, qk_norm.size(1))
    rotated = qk_norm.size(0)
    qk = _rms_norm(qkv[:, :rotated], qk_norm, eps)
    qk = torch.addcmul(qk * cos, qk.roll(qk.size(-1) // 2, -1), sin)
    q, k = qk[:, :heads].transpose(0, 1), qk[:, heads:].transpose(0, 1)
    v = qkv[:, rotated:].transpose(0, 1)
    attended: list[Tensor] = []
    first = 0
    for i in range(len(keys)):
        count, start = rows[i], starts[i]
        keys[i].narrow(1, start, count).copy_(k.narrow(1, first, count))
        values[i].narrow(1, start, count).copy_(v.narrow(1, first, count))
        out = torch.ops.aten.scaled_dot_product_attention(
            q.narrow(1, first, count).unsqueeze(0),
            keys[i].narrow(1, 0, start + count).unsqueeze(0),
            values[i].narrow(1, 0, start + count).unsqueeze(0),
            masks[i],
            0.0,
            False,
            scale=None,
            enable_gqa=True,
        )
        attended.append(out.squeeze(0).transpose(0, 1).reshape(count, -1))
        first += count
    joined = attended[0] if len(attended) == 1 else torch.cat(attended)
    hidden = hidden + _multiply(joined, blocks[1], rotations[1], levels)
    gate_up = _multiply(_rms_norm(hidden, post_norm, eps), blocks[2], rotations[2], levels)
    gate, up = gate_up.chunk(2, 1)
    inner = torch.nn.functional.silu(gate).mul_(up)
    return hidden.add_(_multiply(inner, blocks[3], rotations[3], levels))


@functools.cache
def compiled_layer() -> Callable[..., Tensor] | None:
    """Compile the layer, once per process; None where this Python or torch cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch is pinned
            compiled: Callable[..., Tensor] = torch.jit.script(_layer)
        # It would recompile for every shape it meets, in the middle of an answer.
        torch._C._jit_set_profiling_mode(False)
    except Exception as error:  # whatever it is, the layer also runs uncompiled
        logger.info("decoder layers run uncompiled: %s", error)
        return None
    return compiled


def fusable(linears: tuple[PackedLinear, ...]) -> dict[str, Any] | None:
    """Return the packed parts of a layer's four linear layers as arguments of the compiled
    layer, or None where one of them is of another kind, has a bias, or lies in several blocks."""
    parts = [linear.single_block() for linear in linears if isinstance(linear, _KINDS)]
    if len(parts) != 4 or any(part is None for part in parts) or compiled_layer() is None:
        return None
    rotations = tuple(
        linear.rotation if isinstance(linear, Int8Linear) else None for linear in linears
    )
    levels = max(linear.levels if isinstance(linear, Int8Linear) else 0 for linear in linears)
    return {"blocks": tuple(parts), "rotations": rotations, "levels": levels}


_KINDS = (Fp16Linear, Int8Linear)
