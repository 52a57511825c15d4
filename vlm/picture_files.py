"""Tell by their content which files are pictures, and open those without decoding them.

Only the formats of the table below are ever handed to a decoder. The plugin is called
directly, not through Image.open(), so that a header may be judged by our own limits first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vlm.errors import PictureError

logger = logging.getLogger(__name__)

READABLE = "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC"
_HEAD_BYTES = 4096
_BMP_HEADER_BYTES = (12, 16, 40, 52, 56, 64, 108, 124)


@dataclass(frozen=True)
class PictureFile:
    """A picture whose header is read and whose pixels are not decoded yet."""

    image: Image.Image
    kind: str
    """Name of the format for people ("JPEG"), or empty."""
    notices: tuple[str, ...]


def open_lazily(stream: BinaryIO) -> PictureFile:
    """Read the header of a picture file. Raises PictureError for anything else."""
    head = stream.read(_HEAD_BYTES)
    stream.seek(0)
    kind = _kind(head)
    if kind is None:
        raise PictureError(_refusal(head))
    try:
        image = _OPENERS[kind](stream)
    except MemoryError:
        raise
    # Header parsers raise whatever they meet in a damaged file (SyntaxError, struct.error, ...).
    except Exception as error:
        logger.debug("cannot open a picture", exc_info=True)
        raise PictureError(
            f"This {kind} file is damaged or cut off and cannot be opened. "
            "Save it again, or choose another file."
        ) from error
    return PictureFile(image, kind, _frame_notices(image, kind))


def reduce_while_decoding(file: PictureFile, step: int) -> int:
    """Have a JPEG file decoded at 1/step of its size or more; returns the step it will take.

    libjpeg skips the work for detail that is not asked for, which is several times faster than
    decoding all and resizing.
    """
    if step == 1 or file.kind != "JPEG":
        return 1
    width_px, height_px = file.image.size
    step = min(step, 8)
    file.image.draft(None, (width_px // step, height_px // step))
    return step


def _kind(head: bytes) -> str | None:
    """Name the format that the first bytes belong to, or None."""
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "TIFF"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADER_BYTES:
        return "BMP"
    brands = _brands(head)
    if brands & {b"avif", b"avis"}:
        return "AVIF"
    if brands & {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}:
        return "HEIC"
    return None


def _brands(head: bytes) -> set[bytes]:
    """The brands an ISO media file (HEIC, AVIF, MP4) says it conforms to."""
    if head[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(head[:4], "big"), len(head))
    return {head[8:12]} | {head[at : at + 4] for at in range(16, end - 3, 4)}


def _open_heic(stream: BinaryIO) -> Image.Image:
    # Imported when needed: few people have such files, and the import takes a while.
    from pillow_heif import HeifImageFile

    image: Image.Image = HeifImageFile(stream)  # type: ignore[no-untyped-call]
    return image


_OPENERS: dict[str, Callable[[BinaryIO], Image.Image]] = {
    "JPEG": lambda stream: JpegImagePlugin.jpeg_factory(stream),  # also phones' MPO files
    "PNG": lambda stream: PngImagePlugin.PngImageFile(stream),
    "WebP": lambda stream: WebPImagePlugin.WebPImageFile(stream),
    "GIF": lambda stream: GifImagePlugin.GifImageFile(stream),
    "BMP": lambda stream: BmpImagePlugin.BmpImageFile(stream),
    "TIFF": lambda stream: TiffImagePlugin.TiffImageFile(stream),
    "AVIF": lambda stream: AvifImagePlugin.AvifImageFile(stream),
    "HEIC": _open_heic,
}


def _frame_notices(image: Image.Image, kind: str) -> tuple[str, ...]:
    if kind == "JPEG":  # Phones keep depth maps and small previews as further "frames".
        return ()
    try:
        several = bool(getattr(image, "is_animated", False))
    except Exception:  # A damaged later frame is no reason to refuse the first.
        logger.debug("cannot count frames", exc_info=True)
        return ()
    if not several:
        return ()
    if kind in ("TIFF", "HEIC"):
        return (f"This {kind} file holds several pictures; only the first is used.",)
    return ("This picture is an animation; only its first frame is used.",)


def _refusal(head: bytes) -> str:
    """Say what a file is that is no picture, and what to do instead."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"%pdf"):
        return "This file is a PDF document, not a picture. Save the page as PNG and try again."
    if b"<svg" in start and start.startswith(b"<"):
        return (
            "This file is an SVG drawing, not a picture of pixels. Export it as PNG and try again."
        )
    if _brands(head):
        return "This file is a video or sound file, not a picture. Take a screenshot and use that."
    readable = f"Use a {READABLE} file."
    if head and b"\0" not in head and _is_text(head):
        return f"This file contains text, not a picture. {readable}"
    return f"This file is not a picture of a kind that can be read here. {readable}"


def _is_text(head: bytes) -> bool:
    try:
        # The last character may be cut by the end of `head`.
        head[: max(len(head) - 3, 1)].decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True
