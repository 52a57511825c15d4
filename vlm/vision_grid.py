"""Where the patches of a picture are: position and rotary tables of a grid, kept for reuse."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.rotary import rope_tables

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches."""
Taps = list[tuple[Tensor, Tensor]]

MAX_TABLE_PATCHES = 8192
"""Patches of all grids whose tables are kept; 4.5 KB each at a hidden size of 1,024."""


@dataclass(frozen=True, eq=False)
class PictureTables:
    """What the vision tower adds to n patches, and how it rotates their queries and keys."""

    positions: Tensor
    """(n, hidden_size)"""
    rope: tuple[Tensor, Tensor]
    """See `rope_tables`."""


class GridTables:
    """Makes the tables of a grid from the learned positions; keeps those used last."""

    def __init__(
        self, positions: Tensor, merge_size: int, head_dim: int, rope_theta: float
    ) -> None:
        """positions: (side * side, hidden_size) of any float dtype, row by row."""
        self._positions = positions
        self._merge_size = merge_size
        axis_dim = head_dim // 2
        exponents = torch.arange(0, axis_dim, 2, dtype=torch.float32) / axis_dim
        self.inv_freq = 1.0 / (rope_theta**exponents)
        self._kept: OrderedDict[Grid, PictureTables] = OrderedDict()

    @property
    def patches(self) -> int:
        """Patches of all tables kept."""
        return sum(len(kept.positions) for kept in self._kept.values())

    def tables(self, grid: Grid) -> PictureTables:
        """Return the position and rotary tables of a grid, kept for the grids used last."""
        tables = self._kept.pop(grid, None) or self._make_tables(grid)
        self._kept[grid] = tables
        while self.patches > MAX_TABLE_PATCHES:
            self._kept.popitem(last=False)
        return tables

    def _make_tables(self, grid: Grid) -> PictureTables:
        _, height, width = grid
        rows, columns = merge_order(height, width, self._merge_size)
        side = math.isqrt(len(self._positions))
        axes = torch.stack((rows, columns), 1)[..., None].to(torch.float32)
        return PictureTables(
            positions=self._resampled_positions(
                _taps(rows, height, side), _taps(columns, width, side)
            ),
            rope=rope_tables((axes * self.inv_freq).flatten(1)),
        )

    def _resampled_positions(self, row_taps: Taps, column_taps: Taps) -> Tensor:
        """Interpolate the learned square table bilinearly, (n, hidden_size)."""
        table = self._positions
        side = math.isqrt(len(self._positions))
        total = torch.zeros(len(row_taps[0][0]), table.shape[1])
        for row, row_share in row_taps:
            for column, column_share in column_taps:
                share = (row_share * column_share)[:, None]
                total.addcmul_(table[row * side + column].to(torch.float32), share)
        return total


def merge_order(height: int, width: int, merge_size: int) -> tuple[Tensor, Tensor]:
    """Return the row and column of each patch, the patches of one visual token together."""
    order = torch.arange(height * width).view(
        height // merge_size, merge_size, width // merge_size, merge_size
    )
    order = order.transpose(1, 2).flatten()
    return order // width, order % width


def _taps(index: Tensor, size: int, side: int) -> Taps:
    """Return the two table rows each index lies between, with their shares; corners on corners."""
    at = index.to(torch.float32) * (side - 1) / max(size - 1, 1)
    low = at.floor()
    share = at - low
    first = low.to(torch.int64)
    return [(first, 1 - share), ((first + 1).clamp_max(side - 1), share)]
