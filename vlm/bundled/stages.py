"""The stages of training: how long, on which pictures, with which steps."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.bundled.batches import LARGE_GRIDS
from vlm.bundled.scenes import SceneMix


@dataclass(frozen=True)
class Stage:
    """How one stage trains."""

    steps: int
    pictures: int
    """Pictures of 36 visual tokens per step; more when they are smaller."""
    grids: tuple[tuple[int, int], ...]
    mix: SceneMix
    lr: float
    """Of Muon; AdamW's follows it."""
    final_lr: float
    """The step size falls in a line to this share of lr."""
    with_chats: bool
    dense_weight: float
    text_weight: float = 1.0
    silent_pictures: int = 0
    """Crowded pictures per step that are not talked about."""
    blocks_train: bool = True
    """Whether the vision tower's blocks learn too; its mergers always do."""


STAGES = {
    # Dense labels teach the vision tower; crowded pictures have the most of them.
    "vision": Stage(
        steps=2500,
        pictures=32,
        grids=LARGE_GRIDS,
        mix=SceneMix(text=0.3, one_big=0.3, both=0.1, crowd=2.5),
        lr=0.0055,
        final_lr=0.1,
        with_chats=False,
        dense_weight=1.0,
    ),
    # Small print needs more pictures than shapes do.
    "reading": Stage(
        steps=500,
        pictures=32,
        grids=LARGE_GRIDS,
        mix=SceneMix(shapes=0.3, text=1.2, both=0.6, one_big=0.1, crowd=0.8),
        lr=0.003,
        final_lr=0.02,
        with_chats=False,
        dense_weight=1.0,
    ),
    # The language model learns to ask a tower that stays as it is, which costs a third less.
    "language": Stage(
        steps=1200,
        pictures=24,
        grids=LARGE_GRIDS,
        mix=SceneMix(),
        lr=0.005,
        final_lr=0.02,
        with_chats=True,
        dense_weight=0.5,
        text_weight=1.3,
        blocks_train=False,
    ),
    "final": Stage(
        steps=450,
        pictures=24,
        grids=LARGE_GRIDS,
        mix=SceneMix(text=1.0, both=0.4),
        lr=0.0028,
        final_lr=0.0,
        with_chats=True,
        dense_weight=0.6,
        text_weight=1.3,
        silent_pictures=6,
    ),
}
