"""Odd picture files: every way a file can be strange, made here and not stored."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageDraw

SIDE_PX = 256
RED, WHITE = (220, 30, 30), (255, 255, 255)


def scene(mode: str = "RGB", ground: Any = WHITE) -> Image.Image:
    """A red circle on a ground, large in the middle."""
    image = Image.new("RGB", (SIDE_PX, SIDE_PX), ground)
    ImageDraw.Draw(image).ellipse((56, 56, 200, 200), fill=RED)
    return image.convert(mode)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The picture as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_by_hand(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG file whose header may promise more than its data holds."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)

    header = struct.pack(">2I5B", width, height, 1, 0, 0, 0, 0)
    data = zlib.compress(rows or bytes(64))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def large_bmp(size_mib: float) -> bytes:
    """A whole picture of so many MiB: red, without any packing."""
    width = 1024
    height = round(size_mib * 2**20) // (3 * width)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    row = bytes((RED[2], RED[1], RED[0])) * width
    return b"BM" + struct.pack("<IHHI", 54 + len(row) * height, 0, 0, 54) + head + row * height


def _animated() -> bytes:
    frames = [scene(), Image.new("RGB", (SIDE_PX, SIDE_PX), "blue")]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def _sixteen_bit() -> bytes:
    return saved(Image.fromarray(np.asarray(scene("L")).astype(np.uint16) * 257))


def _transparent() -> bytes:
    """A red circle on a ground that is black and not there."""
    image = scene("RGBA", ground=(0, 0, 0))
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).ellipse((56, 56, 200, 200), fill=255)
    image.putalpha(mask)
    return saved(image)


def _turned() -> bytes:
    """Red above, blue below, as it is shown; stored lying on its side."""
    image = Image.new("RGB", (SIDE_PX, SIDE_PX), "blue")
    image.paste(RED, (0, 0, SIDE_PX, SIDE_PX // 2))
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(image.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif.tobytes())


def _damaged_exif() -> bytes:
    return saved(scene(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xff" * 40)


def _with_profile() -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return saved(scene(), "PNG", icc_profile=profile)


GOOD: dict[str, Callable[[], bytes]] = {
    "plain": lambda: saved(scene()),
    "animated GIF": _animated,
    "CMYK": lambda: saved(scene("CMYK"), "JPEG", quality=95),
    "16 bit": _sixteen_bit,
    "alpha": _transparent,
    "EXIF rotation": _turned,
    "damaged EXIF": _damaged_exif,
    "palette": lambda: saved(scene("P")),
    "colour profile": _with_profile,
    "one pixel": lambda: saved(Image.new("RGB", (1, 1), RED)),
}
"""Files that are strange and can be read."""

_DAMAGED = (
    "This {} file is damaged or cut off and cannot be {}. Save it again, or choose another file."
)
_USE = "Use a JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC file."
_TEXT = f"This file contains text, not a picture. {_USE}"
_OTHER = f"This file is not a picture of a kind that can be read here. {_USE}"

BAD: dict[str, tuple[bytes, str]] = {
    "cut off JPEG": (saved(scene(), "JPEG")[:900], _DAMAGED.format("JPEG", "decoded")),
    "cut off PNG": (saved(scene())[:200], _DAMAGED.format("PNG", "decoded")),
    "head of a PNG": (saved(scene())[:20], _DAMAGED.format("PNG", "opened")),
    "zero bytes": (b"", "This picture file is empty (0 bytes). Choose another file."),
    "text": (b"These are words.\n" * 9, _TEXT),
    "SVG": (
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        "This file is an SVG drawing, not a picture of pixels. Export it as PNG and try again.",
    ),
    "PDF": (
        b"%PDF-1.7\n%\xe2\xe3\n",
        "This file is a PDF document, not a picture. Save the page as PNG and try again.",
    ),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", _TEXT),
    "PSD": (b"8BPS\0\1" + bytes(50), _OTHER),
    "HTML": (b"<!doctype html><script>alert(1)</script>", _TEXT),
    "header bomb": (
        png_by_hand(90_000, 90_000),
        "This image is 90 000 x 90 000 px; the limit is 178 megapixels. Resize it and try again.",
    ),
    "thin strip": (
        saved(Image.new("L", (1, 201))),
        "This image is 1 x 201 px; its long side may be at most 200 times its short side. "
        "Crop it and try again.",
    ),
}
"""Files that are no usable picture, each with what is said of it."""
