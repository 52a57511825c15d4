"""Tell pictures with nothing to see: blank or of one colour, over- or under-exposed.

A page with one line of small print, or a night sky with a lamp in it, must pass: asking about a
picture in vain costs some seconds, leaving out a good one costs its answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_SIDE_PX = 512
"""Pictures are averaged down to about this side first, which takes the noise of a sensor away."""
_FEW = 0.0001
"""Share of pixels that dust makes; a single printed word makes more."""
_NEAR = 24
"""Levels (of 255) around the commonest colour that still are that colour."""
_LIGHT, _DARK = 205, 50
"""Levels that everything is above or below in an over- or under-exposed picture."""
_CLIPPED_LIGHT, _CLIPPED_DARK = 250, 16


def why_blank(image: Image.Image) -> str:
    """Say in a sentence why there is nothing to see in an RGB picture; empty when there is."""
    pixels = _averaged(image)
    middle = np.median(pixels, axis=(0, 1))
    other = (np.abs(pixels.astype(np.int16) - middle) > _NEAR).any(axis=2)
    if _share(other) < _FEW:
        return f"The picture is blank: all of it is {_colour_name(middle)}."
    light = pixels.max(axis=2)
    dark = pixels.min(axis=2)
    if _share(dark < _LIGHT) < _FEW and _share(dark >= _CLIPPED_LIGHT) >= 0.5:
        return "The picture is overexposed: nearly all of it is white."
    if _share(light > _DARK) < _FEW and _share(light <= _CLIPPED_DARK) >= 0.5:
        return "The picture is underexposed: nearly all of it is black."
    return ""


def _averaged(image: Image.Image) -> NDArray[np.uint8]:
    """Return (height, width, 3) uint8, averaged down to about _SIDE_PX."""
    factor = max(1, max(image.size) // _SIDE_PX)
    sides = min(factor, image.width), min(factor, image.height)
    return np.asarray(image.reduce(sides) if factor > 1 else image)


def _share(chosen: NDArray[np.bool_]) -> float:
    return float(chosen.mean())


def _colour_name(colour: NDArray[np.float64]) -> str:
    levels = [round(float(level)) for level in colour]
    if min(levels) >= 245:
        return "white"
    if max(levels) <= 10:
        return "black"
    return "the colour #" + "".join(f"{level:02x}" for level in levels)
