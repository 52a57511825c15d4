"""Write small copies of pictures, upright and true in ratio, for the chat to show."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable
from pathlib import Path

from gradio.utils import get_upload_folder
from PIL import Image

from vlm.errors import PictureError
from vlm.images import Picture

logger = logging.getLogger(__name__)

LONGEST_SIDE_PX = 768


def write_thumbnail(picture: Picture) -> Path:
    """Write a copy of at most 768 px a side into the page's own folder, under a random name.

    Files there are served as they are; the random name is what keeps visitors apart.
    Raises PictureError when the disk has no room.
    """
    folder = Path(get_upload_folder()) / "shown"
    image = picture.image.copy()
    image.thumbnail((LONGEST_SIDE_PX, LONGEST_SIDE_PX), Image.Resampling.LANCZOS)
    path = folder / f"{uuid.uuid4().hex}.webp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=88, method=2)
    except OSError as error:
        logger.error("a small copy of a picture could not be written: %s", error.strerror)
        remove_thumbnails([path])
        raise PictureError(
            "The disk of this machine is full, so pictures cannot be shown. Free some space and "
            "send the question again."
        ) from error
    return path


def remove_thumbnails(paths: Iterable[Path]) -> None:
    """Delete copies that are no longer shown."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
