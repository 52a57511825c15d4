"""Find the picture files of a batch: those in folders, those a pattern matches, those named."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlm.errors import ConfigError

_ENDINGS = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .gif .bmp .dib .tif .tiff .avif .heic .heif .hif"
    .split()
)  # fmt: skip
"""What is taken from a folder; a file that is named or matches a pattern may end as it likes."""


def find_files(given: Sequence[str]) -> list[str]:
    """List the files that folders, patterns and names stand for, each once, in order.

    Folders are searched with all folders in them, hidden ones left out.
    Raises: ConfigError for something that stands for no file.
    """
    found: dict[str, str] = {}
    for name in given:
        paths = list(_files_of(name))
        if not paths:
            raise ConfigError(_nothing(name))
        for path in paths:
            found.setdefault(identity(path), path)
    return list(found.values())


def identity(path: str) -> str:
    """One name for all spellings of a path, seen from the current folder."""
    return os.path.normcase(os.path.abspath(path))


def _files_of(name: str) -> Iterator[str]:
    if os.path.isdir(name):
        yield from _pictures_in(name)
    elif os.path.exists(name):  # before the pattern: a name may hold brackets
        yield os.path.normpath(name)
    else:
        matching = sorted(glob.glob(os.path.expanduser(name), recursive=True))
        yield from (os.path.normpath(path) for path in matching if os.path.isfile(path))


def _pictures_in(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in _ENDINGS:
                yield os.path.normpath(os.path.join(parent, name))


def _nothing(name: str) -> str:
    if os.path.isdir(name):
        return f"There is no picture in the folder {name}. Check its name, or name a pattern."
    if glob.has_magic(name):
        return f"No file matches {name}. Check the pattern; ** stands for folders in folders."
    return f"There is no file or folder {name}. Check its name and try again."
