"""Cut a part out of a picture file at full detail, and remember where it was cut from."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path

from gradio.utils import get_upload_folder
from PIL import Image

from vlm.boxes import SCALE, Box
from vlm.images import PictureLimits, open_picture

WHOLE_PX = 512 * 512
"""Pixels of the small whole picture: about 256 visual tokens."""
MOST_DECODED_PX = 24_000_000
SMALLEST_PX = 16
"""A smaller rectangle is a slip of the hand."""
MOST_REMEMBERED = 2000

Rectangle = tuple[float, float, float, float]
"""Left, top, right and bottom, 0..1 of a picture's width and height."""


@dataclass(frozen=True)
class Part:
    """Where a picture file was cut from."""

    whole: str
    """Path of the whole picture's file."""
    rectangle: Rectangle

    def on_whole(self, box: Box) -> Box:
        """Place a box that was found in the part on the whole picture."""
        left, top, right, bottom = self.rectangle
        x1, x2 = (SCALE * left + x * (right - left) for x in (box.x1, box.x2))
        y1, y2 = (SCALE * top + y * (bottom - top) for y in (box.y1, box.y2))
        return replace(box, x1=x1, y1=y1, x2=x2, y2=y2)


class PictureParts:
    """The parts that were cut on one page; safe to use from several threads."""

    def __init__(self, limits: PictureLimits) -> None:
        self.limits = limits
        self._parts: OrderedDict[str, Part] = OrderedDict()
        self._lock = threading.Lock()
        self._few_at_once = threading.BoundedSemaphore(2)
        """A part of a large picture takes 0.2 GB while it is cut."""

    def find(self, path: str) -> Part | None:
        """Say where a picture file was cut from; None for a file that came as it is."""
        return self._parts.get(path)

    def cut(self, path: str, rectangle: Rectangle) -> tuple[str, str] | None:
        """Write a small copy of the whole picture and the part, each to a file of its own.

        None when the part is too small to be meant. Raises PictureError.
        """
        with self._few_at_once:
            written = self._cut(path, rectangle)
        if written is None:
            return None
        with self._lock:
            self._parts[written[0]] = Part(path, (0.0, 0.0, 1.0, 1.0))
            self._parts[written[1]] = Part(path, rectangle)
            while len(self._parts) > MOST_REMEMBERED:
                self._parts.popitem(last=False)
        return written

    def _cut(self, path: str, rectangle: Rectangle) -> tuple[str, str] | None:
        """Decode, cut and write. Raises PictureError."""
        left, top, right, bottom = rectangle
        share = max(1e-9, (right - left) * (bottom - top))
        # So large a copy that the part alone has the pixels a whole picture would have.
        kept_px = min(MOST_DECODED_PX, int(self.limits.kept_px / share))
        limits = replace(self.limits, kept_px=max(self.limits.kept_px, kept_px))
        whole = open_picture(path, limits=limits).image
        width, height = whole.size
        edges = (
            round(left * width), round(top * height), round(right * width), round(bottom * height),
        )  # fmt: skip
        if min(edges[2] - edges[0], edges[3] - edges[1]) < SMALLEST_PX:
            return None
        scale = min(1.0, (WHOLE_PX / (width * height)) ** 0.5)
        small = whole.resize(
            (max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.LANCZOS
        )
        return _write(small, whole.crop(edges))


def _write(whole: Image.Image, part: Image.Image) -> tuple[str, str]:
    folder = Path(get_upload_folder()) / "parts" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    paths = folder / "whole.png", folder / "part.png"
    for image, path in zip((whole, part), paths, strict=True):
        image.save(path, compress_level=3)
    return str(paths[0]), str(paths[1])
