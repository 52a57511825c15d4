"""Turn a picture file into a Picture: upright 8-bit RGB, bounded in size, known by its content.

One decoded copy feeds the model, the thumbnail, the boxes and the cache keys.
Which files count as pictures: vlm/picture_files.py. How colours become RGB: vlm/to_rgb.py.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import threading
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from vlm.errors import PictureError
from vlm.picture_files import PictureFile, open_lazily, reduce_while_decoding
from vlm.to_rgb import shrink_to_rgb

logger = logging.getLogger(__name__)

_LONGEST_NAME = 120
_LARGE_PX = 24_000_000
_PILLOW = re.compile(r"(PIL|pillow_heif)\b")
_one_large_at_a_time = threading.Lock()
_few_at_once = threading.BoundedSemaphore(2)
"""All decoding goes through here, whoever asks: so many visitors cannot fill the memory."""

# EXIF orientation -> what brings the stored pixels upright (1 and unknown values: nothing).
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True)
class PictureLimits:
    """What is refused before decoding, and how large a copy is kept."""

    max_px: int = 178_000_000
    """Pixels (width x height) a file may announce in its header."""
    max_ratio: float = 200.0
    """Long side over short side; the model's own resizing knows no more."""
    max_file_bytes: int = 512 * 1024 * 1024
    kept_px: int = 1280 * 1024 * 3 // 2
    """A larger picture is halved (again and again) while at least this many pixels remain:
    half as many again as the finest detail level shows the model (1280 tokens x 1024 px)."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded picture; treat `image` as read-only, it is shared."""

    image: Image.Image
    """RGB, upright; may be a smaller copy of the original, at the same aspect ratio."""
    content_hash: str
    """sha256 (hex) over mode, size and pixels of `image`: of what the model sees."""
    name: str = ""
    """For display only: no directories, no control characters."""
    notices: tuple[str, ...] = ()
    """Sentences for the person, such as that only the first frame is used."""
    original_size: tuple[int, int] | None = None
    """(width, height) in px of the upright original; None: that of `image`."""

    @property
    def width_px(self) -> int:
        """Width of the upright original; `image.width` is that of the kept copy."""
        return self.original_size[0] if self.original_size else self.image.width

    @property
    def height_px(self) -> int:
        """Height of the upright original; `image.height` is that of the kept copy."""
        return self.original_size[1] if self.original_size else self.image.height


DEFAULT_LIMITS = PictureLimits()


def open_picture(
    source: str | Path | bytes | Image.Image,
    name: str = "",
    limits: PictureLimits = DEFAULT_LIMITS,
) -> Picture:
    """Decode a picture from a file path, its bytes or a Pillow image, whatever its name says.

    Safe to call from several threads. Raises PictureError with a sentence for the person.
    """
    _hush_pillow()
    if isinstance(source, Image.Image):
        _check_size(source.size, limits)
        return _decode(PictureFile(source, "", ()), name, limits)
    if not isinstance(source, bytes):
        name = name or Path(source).name
    with _open_source(source, limits) as stream:
        file = open_lazily(stream)
        _check_size(file.image.size, limits)
        return _decode(file, name, limits)


def peek_size(
    source: str | Path | bytes, limits: PictureLimits = DEFAULT_LIMITS
) -> tuple[int, int]:
    """Read the upright (width, height) in px out of a picture file's header; decodes nothing.

    Raises PictureError like open_picture(), except for faults of the pixels.
    """
    _hush_pillow()
    with _open_source(source, limits) as stream:
        file = open_lazily(stream)
        _check_size(file.image.size, limits)
        # Asked for the EXIF data of a PNG file that has none in its header, Pillow decodes it all.
        # The size it gives for a TIFF file is upright already.
        has_turn = file.kind != "TIFF" and (file.kind != "PNG" or "exif" in file.image.info)
        turn = _UPRIGHT.get(_orientation(file.image)) if has_turn else None
        return _upright_size(file.image.size, turn)


def safe_name(name: str) -> str:
    """The last part of a file name, without directories or control characters, for display."""
    last = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    shown = "".join(c for c in last if unicodedata.category(c)[0] != "C").strip()
    if not shown.strip("."):
        return "picture"
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 1] + "…"


def spaced(number: int) -> str:
    """Write 90000 as "90 000"."""
    return f"{number:,}".replace(",", " ")


def _hush_pillow() -> None:
    # Pillow warns about odd metadata on stderr, which helps nobody here. catch_warnings() is not
    # safe with threads; a filter that stays is. Others may have reset the filters since.
    if ("ignore", None, Warning, _PILLOW, 0) not in warnings.filters:
        warnings.filterwarnings("ignore", module=_PILLOW.pattern)


def _open_source(source: str | Path | bytes, limits: PictureLimits) -> BinaryIO:
    stream: BinaryIO
    if isinstance(source, bytes):
        size_bytes, stream = len(source), io.BytesIO(source)
    else:
        path = Path(source)
        try:
            # A pipe or device would block or never end.
            if not path.is_file():
                raise PictureError("This picture file is no longer there. Add it again.")
            size_bytes, stream = path.stat().st_size, path.open("rb")
        except (OSError, ValueError) as error:
            logger.debug("cannot open a picture file", exc_info=True)
            raise PictureError("This picture file cannot be opened. Add it again.") from error
    if 0 < size_bytes <= limits.max_file_bytes:
        return stream
    stream.close()
    if size_bytes == 0:
        raise PictureError("This picture file is empty (0 bytes). Choose another file.")
    raise PictureError(
        f"This picture file has {size_bytes / 1024**2:.0f} MiB; the limit is "
        f"{limits.max_file_bytes / 1024**2:.0f} MiB. Save it smaller and try again."
    )


def _check_size(size: tuple[int, int], limits: PictureLimits) -> None:
    width_px, height_px = size
    shown = f"This image is {spaced(width_px)} x {spaced(height_px)} px"
    if min(size) < 1:
        raise PictureError(f"{shown}: it has no pixels. Choose another file.")
    if width_px * height_px > limits.max_px:
        raise PictureError(
            f"{shown}; the limit is {limits.max_px / 1e6:g} megapixels. Resize it and try again."
        )
    if max(size) > limits.max_ratio * min(size):
        raise PictureError(
            f"{shown}; its long side may be at most {limits.max_ratio:g} times its short side. "
            "Crop it and try again."
        )


def _decode(file: PictureFile, name: str, limits: PictureLimits) -> Picture:
    """Decode, make upright and bound an opened picture. Raises PictureError."""
    stored_size = file.image.size
    step = _largest_step(stored_size, limits.kept_px)
    try:
        with _turn_to_decode(stored_size):
            step = max(1, step // reduce_while_decoding(file, step))
            file.image.load()
            # Asked after load(): TIFF turns itself there, and drops its tag.
            turn = _UPRIGHT.get(_orientation(file.image))
            rgb, color_notices = shrink_to_rgb(file.image, step)
    except MemoryError as error:
        raise PictureError(
            f"There is not enough memory to open this image of {spaced(stored_size[0])} x "
            f"{spaced(stored_size[1])} px. Resize it and try again."
        ) from error
    # Decoders raise whatever they meet in a damaged file (OSError, SyntaxError, KeyError, ...).
    except Exception as error:
        logger.debug("cannot decode a picture", exc_info=True)
        raise PictureError(
            f"This {file.kind or 'image'} file is damaged or cut off and cannot be decoded. "
            "Save it again, or choose another file."
        ) from error
    upright = rgb.transpose(turn) if turn is not None else rgb
    return Picture(
        image=upright,
        content_hash=_content_hash(upright),
        name=safe_name(name),
        notices=file.notices + color_notices,
        original_size=_upright_size(stored_size, turn),
    )


@contextmanager
def _turn_to_decode(size: tuple[int, int]) -> Iterator[None]:
    # A picture at the limit takes 0.7 GB while it is decoded: never two of them at once. A large
    # one that waits for another must not take a place from small ones, hence this order.
    large = _one_large_at_a_time if size[0] * size[1] > _LARGE_PX else nullcontext()
    with large, _few_at_once:
        yield


def _largest_step(size: tuple[int, int], kept_px: int) -> int:
    step = 1
    while (size[0] // (2 * step)) * (size[1] // (2 * step)) >= kept_px:
        step *= 2
    return step


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # Damaged EXIF data is no reason to refuse the pixels.
        logger.debug("cannot read EXIF data", exc_info=True)
        return 1


def _upright_size(stored_size: tuple[int, int], turn: Image.Transpose | None) -> tuple[int, int]:
    sideways = turn is not None and turn in (_UPRIGHT[5], _UPRIGHT[6], _UPRIGHT[7], _UPRIGHT[8])
    return (stored_size[1], stored_size[0]) if sideways else stored_size


def _content_hash(image: Image.Image) -> str:
    digest = hashlib.sha256(f"{image.mode} {image.width}x{image.height}\n".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()
