"""Draw boxes, points and their labels on a copy of a picture.

Lines and labels can be told from any ground, and colours from each other without full
colour vision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cache

from PIL import Image, ImageDraw, ImageFont

from vlm.boxes import Box

# Seven of the eight colours of Okabe and Ito (2008); the last is black, our outline.
COLOURS = ("#D55E00", "#0072B2", "#F0E442", "#CC79A7", "#009E73", "#56B4E9", "#E69F00")
_INK, _PAPER = "#000000", "#FFFFFF"
# Pillow's own font knows no Chinese; these come with common systems.
_SYSTEM_FONTS = (
    "NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "NotoSansSC-Regular.otf",
    "wqy-microhei.ttc", "wqy-zenhei.ttc", "DroidSansFallbackFull.ttf", "NotoSerifCJK-Regular.ttc",
    "NotoSerifCJK-Bold.ttc", "PingFang.ttc", "Hiragino Sans GB.ttc", "STHeiti Light.ttc",
    "Arial Unicode.ttf", "msyh.ttc", "simsun.ttc",
)  # fmt: skip
_NO_SUCH_SIGN = "\U0010fffd"

_Rectangle = tuple[float, float, float, float]
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def colour_of(index: int) -> str:
    """Colour of the box at this place of an answer, as "#RRGGBB"."""
    return COLOURS[index % len(COLOURS)]


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    light = luminance(colour) + 0.05
    return _INK if light / 0.05 >= 1.05 / light else _PAPER


def luminance(colour: str) -> float:
    """How light a colour "#RRGGBB" is, 0..1 (relative luminance of WCAG 2)."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def draw_boxes(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """Give a copy (RGB, of the same size) with each box, its number and its label."""
    drawn = image.convert("RGB") if image.mode != "RGB" else image.copy()
    pen = ImageDraw.Draw(drawn)
    line_px = max(1, round(min(image.size) / 220))
    places = [box.in_pixels(*image.size) for box in boxes]
    for index, (box, place) in enumerate(zip(boxes, places, strict=True)):
        _outline(pen, place, colour_of(index), line_px, box.is_point)
    taken: list[_Rectangle] = []
    font_px = max(9, round(min(image.size) / 32))
    for index, (box, place) in enumerate(zip(boxes, places, strict=True)):
        written = tag_text(index, box.label, font_px)
        around = _grown(place, 5 * line_px) if box.is_point else place
        _tag(pen, image.size, around, written, colour_of(index), taken)
    return drawn


def _grown(place: _Rectangle, by_px: int) -> _Rectangle:
    return place[0] - by_px, place[1] - by_px, place[2] + by_px, place[3] + by_px


def _outline(
    pen: ImageDraw.ImageDraw, place: _Rectangle, colour: str, line_px: int, is_point: bool
) -> None:
    """Draw from the outside in: black, white, the colour; one of them differs from any ground."""
    left, top, right, bottom = place
    if is_point:
        radius = 3 * line_px
        for grown, fill in ((2 * line_px, _INK), (line_px, _PAPER), (0, colour)):
            r = radius + grown
            pen.ellipse((left - r, top - r, left + r, top + r), fill=fill)
        return
    # The colour's line lies inside the box, its casing around it.
    for grown, width, ink in (
        (2 * line_px, line_px, _INK),
        (line_px, line_px, _PAPER),
        (0, 2 * line_px, colour),
    ):
        edges = (left - grown, top - grown, right - 1 + grown, bottom - 1 + grown)
        pen.rectangle(edges, outline=ink, width=width)


def tag_text(index: int, label: str, font_px: int) -> tuple[str, _Font]:
    """Number and label, and a font that has all their signs; the number alone without one."""
    text = f"{index + 1} {label}".rstrip()
    for font in _fonts(font_px):
        if _can_write(font, text):
            return text, font
    return str(index + 1), _fonts(font_px)[0]


@cache
def _fonts(size_px: int) -> tuple[_Font, ...]:
    fonts: list[_Font] = [ImageFont.load_default(size_px)]
    for name in _SYSTEM_FONTS:
        with contextlib.suppress(OSError):
            fonts.append(ImageFont.truetype(name, size_px))
            break
    return tuple(fonts)


def _can_write(font: _Font, text: str) -> bool:
    missing = bytes(font.getmask(_NO_SUCH_SIGN))
    return all(bytes(font.getmask(sign)) != missing for sign in set(text) if not sign.isspace())


def _tag(
    pen: ImageDraw.ImageDraw,
    size: tuple[int, int],
    place: _Rectangle,
    written: tuple[str, _Font],
    colour: str,
    taken: list[_Rectangle],
) -> None:
    """Write a label beside its box where the picture has room and no other label stands."""
    text, font = written
    pad = 3
    x1, y1, x2, y2 = pen.textbbox((0, 0), text, font=font)
    width, height = x2 - x1 + 2 * pad, y2 - y1 + 2 * pad
    left, top, _, bottom = place
    tops = (top - height, top, bottom, bottom - height)
    spots = [_inside((left, y, left + width, y + height), size) for y in tops]
    spot = next((s for s in spots if not any(_meet(s, other) for other in taken)), spots[0])
    taken.append(spot)
    pen.rectangle(spot, fill=colour, outline=_INK)
    pen.text((spot[0] + pad - x1, spot[1] + pad - y1), text, font=font, fill=ink_on(colour))


def _inside(spot: _Rectangle, size: tuple[int, int]) -> _Rectangle:
    """Move a rectangle into the picture, as far as it fits."""
    x = max(0.0, min(spot[0], size[0] - (spot[2] - spot[0]) - 1))
    y = max(0.0, min(spot[1], size[1] - (spot[3] - spot[1]) - 1))
    return x, y, x + spot[2] - spot[0], y + spot[3] - spot[1]


def _meet(a: _Rectangle, b: _Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
