"""Fetch a model into the Hugging Face cache: only what is missing, with progress and time left.

The cache keeps the hub's own layout (blobs, snapshots, refs), so other tools find the model,
and blobs they fetched are used here. A part lies beside the blobs as `<checksum>.part`.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout
from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # public, lazy

from vlm.architecture import CONFIG_FILE, check_architecture, read_json
from vlm.errors import DownloadError
from vlm.hub_cache import storage_folder
from vlm.hub_file import RETRY_WAITS_S, FileDownload
from vlm.hub_listing import HubFile, HubListing
from vlm.units import format_bytes

logger = logging.getLogger(__name__)

DISK_MARGIN_BYTES = 200_000_000
"""Room left on the disk, so that a full download does not stop everything else there."""
SPEED_WINDOW_S = 10.0
"""The speed shown is that of so many last seconds: long enough to be steady."""


@dataclass(frozen=True)
class DownloadProgress:
    """How far a download is, for people: what is going on, bytes and the time left."""

    message: str
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    eta_s: float | None = None


OnProgress = Callable[[DownloadProgress], None]


class Speed:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, done_bytes: int) -> float:
        """Take a reading and return the speed; 0.0 until half a second has passed."""
        if not self._samples or now_s - self._samples[-1][0] >= 0.25:
            self._samples.append((now_s, done_bytes))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > SPEED_WINDOW_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        passed_s = now_s - first_s
        return max(0.0, (done_bytes - first_bytes) / passed_s) if passed_s >= 0.5 else 0.0

    def restart(self) -> None:
        """Forget what was: bytes found on the disk are no download."""
        self._samples.clear()


class Download:
    """One model on its way from the hub into the cache."""

    def __init__(
        self,
        listing: HubListing,
        cache_folder: Path,
        on_progress: OnProgress,
        retry_waits_s: tuple[float, ...] = RETRY_WAITS_S,
    ) -> None:
        self.listing = listing
        self.cache_folder = cache_folder
        self.storage = storage_folder(listing.hub_id, cache_folder)
        self.snapshot = self.storage / "snapshots" / listing.commit
        self._retry_waits_s = retry_waits_s
        self._on_progress = on_progress
        self._speed = Speed()
        self._message = ""
        self._done_bytes = 0

    def run(self) -> Path:
        """Fetch what is missing and return the snapshot's folder.

        Raises DownloadError (parts stay for the next attempt), ModelNotFoundError when the
        hub refuses, CheckpointError for another architecture before its weights are fetched,
        and whatever `on_progress` raises.
        """
        try:
            self._check_disk_space()
            for file in self.listing.files:
                self._bring(file)
                if file.name == CONFIG_FILE:
                    check_architecture(read_json(self.snapshot / file.name), self.listing.hub_id)
            self._write_ref()
        except OSError as error:
            raise self._disk_error(error) from error
        return self.snapshot

    def _blob(self, file: HubFile) -> Path:
        return self.storage / "blobs" / file.checksum

    def _part(self, file: HubFile) -> Path:
        return self.storage / "blobs" / f"{file.checksum}.part"

    def _check_disk_space(self) -> None:
        missing = 0
        for file in self.listing.files:
            if _size(self._blob(file)) != file.size_bytes:
                missing += max(0, file.size_bytes - (_size(self._part(file)) or 0))
        folder = self.cache_folder.absolute()
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if missing and free < missing + DISK_MARGIN_BYTES:
            raise DownloadError(
                f"{self.listing.hub_id} needs {format_bytes(missing + DISK_MARGIN_BYTES)} more "
                f"on the disk, but {self.cache_folder} has {format_bytes(free)} free. Free some "
                "space, or set HF_HOME to a folder on a larger disk."
            )

    def _bring(self, file: HubFile) -> None:
        """Bring one file into the snapshot, from its blob, its part or the hub."""
        blob, part = self._blob(file), self._part(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._lock(stack, file)
            if _size(blob) != file.size_bytes:
                FileDownload(self.listing, file, part, self._report, self._retry_waits_s).run()
                os.replace(part, blob)
            _link(blob, self.snapshot / file.name)
        self._done_bytes += file.size_bytes

    def _lock(self, stack: ExitStack, file: HubFile) -> None:
        """Take the hub's own lock of a file: another program may be fetching it right now."""
        path = self.cache_folder / ".locks" / self.storage.name / f"{file.checksum}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                stack.enter_context(WeakFileLock(path, timeout=1.0))
                return
            except Timeout:
                self._report(_size(self._part(file)) or 0, "Another program is downloading")

    def _report(self, part_bytes: int, message: str) -> None:
        """Tell the bytes that are here, the speed of the last seconds, and the time left."""
        if message != self._message:
            self._message = message
            self._speed.restart()
        done, total = self._done_bytes + part_bytes, self.listing.total_bytes
        speed = self._speed.add(time.monotonic(), done)
        eta_s = (total - done) / speed if speed > 0 else None
        self._on_progress(DownloadProgress(message, done, total, speed, eta_s))

    def _write_ref(self) -> None:
        """Name this commit "main", last of all: a partial download is never found by name."""
        ref = self.storage / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = ref.with_name(f"main.{os.getpid()}")
        fresh.write_text(self.listing.commit, encoding="ascii")
        os.replace(fresh, ref)

    def _disk_error(self, error: OSError) -> DownloadError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DownloadError(
                f"The disk of {self.cache_folder} is full. Free some space, or set HF_HOME to a "
                "folder on a larger disk; then try again and the download goes on."
            )
        return DownloadError(
            f"{self.cache_folder} cannot be written ({error}). Set HF_HOME to a folder that "
            "may be written."
        )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _link(blob: Path, target: Path) -> None:
    """Show a blob under its name in the snapshot; copied where links are not allowed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if _size(target) == _size(blob):
        return
    target.unlink(missing_ok=True)
    try:
        target.symlink_to(os.path.relpath(blob, target.parent))
    except OSError:
        shutil.copyfile(blob, target)
