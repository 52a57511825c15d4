"""Keep the folder of uploads within bounds of bytes and files: the oldest go first.

Gradio deletes by age what it took in itself; half an upload that was broken off, and a thousand
within an hour, are left to this.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

MOST_FILES = 4000
"""A question has up to eight, and as many small copies to show."""
MOST_UPLOADS = 40
"""So many times the largest upload may be kept: 2 GB with the default settings."""


class _File(NamedTuple):
    used_at_s: float
    size_bytes: int
    path: str


def make_room(folder: Path, most_bytes: int, most_files: int = MOST_FILES) -> int:
    """Delete the oldest files until the rest is within the bounds; returns how many went."""
    files = sorted(_files(folder))
    left_bytes, left_files = sum(file.size_bytes for file in files), len(files)
    for count, file in enumerate(files):
        if left_bytes <= most_bytes and left_files <= most_files:
            if count:
                logger.info("%d old uploads were deleted to make room", count)
            return count
        with contextlib.suppress(OSError):
            os.unlink(file.path)
        left_bytes, left_files = left_bytes - file.size_bytes, left_files - 1
    return len(files)


def _files(folder: Path) -> Iterator[_File]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):  # it may be gone already
                found = os.stat(path, follow_symlinks=False)
                yield _File(found.st_mtime, found.st_size, path)
