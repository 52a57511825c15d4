"""Picture -> what the vision tower reads: resized, normalised, cut into patches.

The numbers equal those of transformers' own processor (Pillow backend) bit for bit, for the
same resized picture. How large that is: vlm/picture_size.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vlm.images import Picture
from vlm.picture_size import PictureGeometry, fit_size

_RGB = 3


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
