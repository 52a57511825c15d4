"""Bring decoded pixels of any mode to 8-bit RGB: scaled, composited on white, colour-managed.

Not covered: colour profiles of RGB pictures (the model was trained without looking at them).
"""

from __future__ import annotations

import io
import logging

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

logger = logging.getLogger(__name__)

_BAND_ROWS = 1024
_TWELVE_BITS = 4095.0
_DEPTHS = ((255.0, 0.0), (_TWELVE_BITS, 0.0), (65535.0, 0.0))
_BRIGHTENED = "The values of this picture were stretched to the visible range."


def shrink_to_rgb(image: Image.Image, step: int) -> tuple[Image.Image, tuple[str, ...]]:
    """Return a new RGB image, averaged over step x step pixels, and notices for the person."""
    notices: tuple[str, ...] = ()
    if image.mode.startswith(("I", "F")):
        image, notices = _deep_to_8_bit(image)
    if step == 1:
        rgb = _to_rgb(image)
    else:
        rgb = _reduced_rgb(image, step)
    # EXIF and colour profile speak of the file's pixels, no longer of these.
    rgb.info = {}
    return rgb, notices


def _reduced_rgb(image: Image.Image, step: int) -> Image.Image:
    width_px, height_px = image.size
    small = Image.new("RGB", (-(-width_px // step), -(-height_px // step)))
    # Band by band, so that a large picture is held once and not once more per conversion.
    rows = max(_BAND_ROWS // step, 1) * step
    for top in range(0, height_px, rows):
        band = image.crop((0, top, width_px, min(top + rows, height_px)))
        small.paste(_to_rgb(band).reduce(step), (0, top // step))
    return small


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return a new 8-bit RGB image of the same size; transparent parts show white."""
    if image.mode == "CMYK":
        return _cmyk_to_rgb(image)
    if image.mode == "La":  # Premultiplied grey has no direct way to RGBA.
        image = image.convert("LA")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    ground = Image.new("RGB", image.size, "white")
    ground.paste(layer, (0, 0), layer)
    return ground


def _cmyk_to_rgb(image: Image.Image) -> Image.Image:
    icc_bytes = image.info.get("icc_profile")
    if icc_bytes:
        try:
            profile = ImageCms.ImageCmsProfile(io.BytesIO(icc_bytes))
            screen = ImageCms.createProfile("sRGB")
            managed = ImageCms.profileToProfile(image, profile, screen, outputMode="RGB")
            if managed is not None:
                return managed
        except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
            logger.debug("unusable colour profile; using plain CMYK", exc_info=True)
    return image.convert("RGB")


def _deep_to_8_bit(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Scale 16-bit, 32-bit and float grey values to 8 bits instead of clipping them."""
    values: NDArray[np.generic] = np.asarray(image)
    low, high, is_stretched = _visible_range(values)
    grey = np.empty(values.shape, np.uint8)
    for top in range(0, values.shape[0], _BAND_ROWS):
        band = values[top : top + _BAND_ROWS].astype(np.float64)
        scaled = (np.clip(band, low, high) - low) * (255.0 / (high - low))
        grey[top : top + _BAND_ROWS] = np.rint(np.nan_to_num(scaled)).astype(np.uint8)
    result = Image.fromarray(grey)
    clear_value = image.info.get("transparency")
    if isinstance(clear_value, int):
        result.putalpha(Image.fromarray(np.where(values == clear_value, 0, 255).astype(np.uint8)))
    return result, (_BRIGHTENED,) if is_stretched else ()


def _visible_range(values: NDArray[np.generic]) -> tuple[float, float, bool]:
    """Return the values shown black and white, and whether they were chosen from the picture.

    Whole numbers are taken as 8, 12 (as cameras and scanners store in 16 bits) or 16 bits deep,
    floats as 0..1 or 0..255; anything else is stretched from its least to its greatest value.
    """
    is_float = values.dtype.kind == "f"
    finite = values[np.isfinite(values)] if is_float else values
    if not finite.size:
        return 0.0, 1.0, False
    low, high = float(finite.min()), float(finite.max())
    if low >= 0:
        for full, least in ((1.0, 0.0), (255.0, 64.0)) if is_float else _DEPTHS:
            if least <= high <= full:
                return 0.0, full, full == _TWELVE_BITS
    return low, high if high > low else low + 1.0, True
