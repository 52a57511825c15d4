"""The rotation that gives queries and keys their positions, for text and pictures alike."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return (cos, signed sin), each (n, 1, head_dim), for angles (n, head_dim / 2)."""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of x (n, heads, head_dim) by what `rope_tables` returned."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
