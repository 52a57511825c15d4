"""Picture -> what the vision tower reads: resized, normalised, cut into patches.

The numbers equal those of transformers' own processor (Pillow backend) bit for bit, for the
same resized picture. Sizes follow its rule too, within the token budget.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vlm.errors import CheckpointError, PictureError
from vlm.images import Picture, spaced

_MAX_RATIO = 200
_RGB = 3


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


@dataclass(frozen=True, eq=False)
class PatchedPicture:
    """One picture as the vision tower reads it."""

    pixel_values: Tensor
    """(n_patches, 3 * temporal_patch_size * patch_size**2) float32, merge squares together."""
    grid_thw: tuple[int, int, int]
    """Patches along time (1), height and width."""
    key: str
    """Stands for exactly these pixel values: content, geometry and size."""
    merge_size: int = 2

    @property
    def visual_tokens(self) -> int:
        """Prompt positions this picture takes."""
        return math.prod(self.grid_thw) // self.merge_size**2


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


@dataclass(frozen=True, eq=False)
class MeasuredPicture:
    """One picture with its place in a prompt, before any work on its pixels."""

    picture: Picture
    size: tuple[int, int]
    """(width, height) in px the model sees."""
    geometry: PictureGeometry

    @property
    def grid_thw(self) -> tuple[int, int, int]:
        """Patches along time (1), height and width."""
        patch_size = self.geometry.patch_size
        return 1, self.size[1] // patch_size, self.size[0] // patch_size

    @property
    def key(self) -> str:
        """Stands for exactly the pixel values of patch()."""
        width, height = self.size
        return f"{self.picture.content_hash} {width}x{height} {self.geometry}"

    @property
    def visual_tokens(self) -> int:
        """Prompt positions this picture takes."""
        return math.prod(self.grid_thw) // self.geometry.merge_size**2

    def patch(self) -> PatchedPicture:
        """Resize, normalise and cut the picture."""
        pixels = np.asarray(self.picture.image.resize(self.size, Image.Resampling.BICUBIC))
        return PatchedPicture(
            pixel_values=torch.from_numpy(_cut(pixels, self.geometry)),
            grid_thw=self.grid_thw,
            key=self.key,
            merge_size=self.geometry.merge_size,
        )


def measure_picture(
    picture: Picture, geometry: PictureGeometry, max_visual_tokens: int
) -> MeasuredPicture:
    """Find the size a picture is seen at. Raises PictureError for extreme ratios."""
    kept_px = picture.image.width * picture.image.height
    if kept_px < picture.width_px * picture.height_px:
        # Enlarging the kept copy again would cost time and show nothing new.
        max_visual_tokens = min(max_visual_tokens, kept_px // geometry.token_side_px**2)
    size = fit_size(picture.width_px, picture.height_px, geometry, max_visual_tokens)
    return MeasuredPicture(picture, size, geometry)


def patch_picture(
    picture: Picture, geometry: PictureGeometry, max_visual_tokens: int
) -> PatchedPicture:
    """Resize, normalise and cut a picture. Raises PictureError for extreme ratios."""
    return measure_picture(picture, geometry, max_visual_tokens).patch()


def _cut(pixels: NDArray[np.uint8], geometry: PictureGeometry) -> NDArray[np.float32]:
    """Cut (height, width, 3) uint8 into normalised patches (n, 3 * t * p * p) float32."""
    height, width, _ = pixels.shape
    patch, merge, frames = geometry.patch_size, geometry.merge_size, geometry.temporal_patch_size
    rows, columns = height // patch // merge, width // patch // merge
    squares = pixels.reshape(rows, merge, patch, columns, merge, patch, _RGB)
    # The merge x merge patches of one visual token stand together, each as (3, patch, patch).
    levels = squares.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, _RGB, patch, patch)
    table = _normalised_levels(geometry.mean, geometry.std)
    patches = np.empty((len(levels), _RGB, frames, patch, patch), np.float32)
    for channel in range(_RGB):
        # A still picture is a film of equal frames.
        patches[:, channel] = table[channel][levels[:, channel]][:, None]
    return patches.reshape(len(levels), -1)


@lru_cache(maxsize=8)
def _normalised_levels(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> NDArray[np.float32]:
    """Return what each of the 256 levels becomes, (3, 256) float32.

    Rescaled in float64, rounded to float32, then normalised in float32: the order of
    transformers' Pillow backend (image_transforms.rescale, normalize), so that no bit differs.
    """
    levels = (np.arange(256).astype(np.float64) * (1 / 255)).astype(np.float32)
    means, stds = np.array(mean, np.float32), np.array(std, np.float32)
    table: NDArray[np.float32] = (levels[None] - means[:, None]) / stds[:, None]
    return table


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
