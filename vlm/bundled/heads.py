"""Linear heads that read dense labels off visual tokens; used in training only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlm.bundled.labels import CHARACTER_SLOTS
from vlm.bundled.scenes import CHARACTERS, COLOURS, SHAPES

EDGE_BINS = 11


class DenseHeads(nn.Module):
    """Reads off every visual token what it shows; used in training only.

    Outputs per token: kind (none, shapes, text), colour (none, COLOURS), background colour,
    characters (3 slots, none + CHARACTERS), the box of the thing (4 fractions), the ninth its
    middle lies in, the tenth of the picture that each edge of its box lies in (4 times 11), and
    which half of that tenth (4 times 2): what an answer tells of it.
    """

    SIZES = (
        len(SHAPES) + 2,
        len(COLOURS) + 1,
        len(COLOURS),
        *[len(CHARACTERS) + 1] * CHARACTER_SLOTS,
        4,
        9,
        *[EDGE_BINS] * 4,
        *[2] * 4,
    )

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, sum(self.SIZES))

    def forward(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Split one linear map of (..., width) into the outputs."""
        return torch.split(self.linear(embeddings), list(self.SIZES), dim=-1)
