"""How large a model sees a picture, and how many visual tokens that takes.

Imports no torch: the page tells what a picture will cost before the engine is there.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.errors import CheckpointError, PictureError
from vlm.images import spaced

_MAX_RATIO = 200


@dataclass(frozen=True)
class PictureGeometry:
    """How a checkpoint wants its pictures; the defaults are Qwen3-VL's."""

    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    min_px: int = 65536
    max_px: int = 16777216
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def token_side_px(self) -> int:
        """Side in px of the square that one visual token covers."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_folder(cls, folder: str | Path) -> PictureGeometry:
        """Read preprocessor_config.json of a checkpoint. Raises CheckpointError."""
        path = Path(folder) / "preprocessor_config.json"
        try:
            return cls._from_values(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"The model folder has no usable preprocessor_config.json ({error}). "
                "Download the model again."
            ) from error

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> PictureGeometry:
        # Older checkpoints write min_pixels / max_pixels beside, or instead of, size.
        size = values.get("size") or {}
        geometry = cls(
            patch_size=int(values.get("patch_size", cls.patch_size)),
            temporal_patch_size=int(values.get("temporal_patch_size", cls.temporal_patch_size)),
            merge_size=int(values.get("merge_size", cls.merge_size)),
            min_px=int(values.get("min_pixels") or size.get("shortest_edge", cls.min_px)),
            max_px=int(values.get("max_pixels") or size.get("longest_edge", cls.max_px)),
            mean=_three(values.get("image_mean", cls.mean)),
            std=_three(values.get("image_std", cls.std)),
        )
        whole = (geometry.patch_size, geometry.temporal_patch_size, geometry.merge_size)
        if min(*whole, geometry.min_px, *geometry.std) <= 0 or geometry.max_px < geometry.min_px:
            raise ValueError("sizes must be above 0")
        return geometry


def fit_size(
    width_px: int, height_px: int, geometry: PictureGeometry, max_visual_tokens: int
) -> tuple[int, int]:
    """Return the (width, height) in px to resize to: whole tokens, ratio kept, within the budget.

    The same rule as transformers' smart_resize with size limits min_px and
    min(max_px, budget), except that the budget holds also for the thinnest strips.
    Raises PictureError beyond a ratio of 200 : 1.
    """
    if max(width_px, height_px) > _MAX_RATIO * min(width_px, height_px):
        raise PictureError(
            f"This image is {spaced(width_px)} x {spaced(height_px)} px; its long side may be at "
            f"most {_MAX_RATIO} times its short side. Crop it and try again."
        )
    side_px = geometry.token_side_px
    max_px = max(min(geometry.max_px, max_visual_tokens * side_px**2), side_px**2)
    min_px = min(geometry.min_px, max_px)
    width, height = round(width_px / side_px), round(height_px / side_px)
    if width * height * side_px**2 < min_px:
        grow = math.sqrt(min_px / (width_px * height_px))
        width = math.ceil(width_px * grow / side_px)
        height = math.ceil(height_px * grow / side_px)
    if width * height * side_px**2 > max_px:
        shrink = math.sqrt(width_px * height_px / max_px)
        width = max(math.floor(width_px / shrink / side_px), 1)
        height = max(math.floor(height_px / shrink / side_px), 1)
        # Where the short side cannot get shorter, the long side pays for the budget.
        most_tokens = max_px // side_px**2
        width = min(width, max(most_tokens // height, 1))
        height = min(height, max(most_tokens // width, 1))
    return width * side_px, height * side_px


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
