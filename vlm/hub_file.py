"""One file from a hub to disk: streamed, resumed after breaks, checked against its checksum.

The hub's own client restarts a broken file from zero; here a part stays on disk, and the
next attempt or the next start of the program goes on from its end.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, re-exported lazily
    build_hf_headers,
    hf_raise_for_status,
)

from vlm.errors import DownloadError
from vlm.hub_listing import HubFile, HubListing, in_words

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
"""A connection that gives no byte for this long is broken."""
RETRY_WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Waits between attempts that brought nothing new; after the last one the download fails."""
RETRY_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))

OnBytes = Callable[[int, str], None]
"""Told the bytes of the file that are here and what is going on; may raise to stop."""


class Checksum(Protocol):
    """What hashlib's objects have in common."""

    def update(self, block: bytes, /) -> None:
        """Add a block."""

    def hexdigest(self) -> str:
        """Return the checksum of all blocks."""


class FileDownload:
    """One file of a listing on its way into its part file."""

    def __init__(
        self,
        listing: HubListing,
        file: HubFile,
        part: Path,
        on_bytes: OnBytes,
        retry_waits_s: tuple[float, ...],
    ) -> None:
        self._listing = listing
        self._file = file
        self._part = part
        self._on_bytes = on_bytes
        self._retry_waits_s = retry_waits_s

    def run(self) -> None:
        """Make the part whole; content that arrives damaged is fetched once more.

        Raises DownloadError (what is here is kept), ModelNotFoundError when the hub refuses,
        OSError from the disk, and what `on_bytes` raises.
        """
        for attempt in (1, 2):
            with open(self._part, "ab+") as part:
                checksum = self._read_again(part)
                self._fill(part, checksum)
            if checksum.hexdigest() == self._file.checksum:
                return
            self._part.unlink()
            logger.warning("%s arrived damaged (attempt %d)", self._file.name, attempt)
        raise DownloadError(
            f"{self._file.name} of {self._listing.hub_id} arrived damaged twice. Try again "
            "later, or from another network (a proxy may change files)."
        )

    def _read_again(self, part: BinaryIO) -> Checksum:
        """Return the checksum of what is there already; the part is at its end then."""
        checksum = _new_checksum(self._file)
        part.seek(0)
        while block := part.read(1 << 22):
            checksum.update(block)
            self._on_bytes(part.tell(), "Checking what was downloaded before")
        if part.tell() > self._file.size_bytes:
            part.truncate(0)
            part.seek(0)
            return _new_checksum(self._file)
        return checksum

    def _fill(self, part: BinaryIO, checksum: Checksum) -> None:
        """Append to the part until it is whole, going on after breaks. Raises DownloadError."""
        failures = 0
        while part.tell() < self._file.size_bytes:
            start = part.tell()
            reason = "the connection ended early"
            try:
                self._stream(part, checksum)
            except (httpx2.HTTPError, HfHubHTTPError) as error:
                if isinstance(error, HfHubHTTPError) and (
                    error.response.status_code not in RETRY_STATUS
                ):
                    raise in_words(error, self._listing.hub_id, self._listing.endpoint) from error
                reason = str(error).partition("\n")[0] or type(error).__name__
            if part.tell() >= self._file.size_bytes:
                return
            failures = 1 if part.tell() > start else failures + 1
            if failures > len(self._retry_waits_s):
                raise DownloadError(
                    f"The download of {self._listing.hub_id} broke ({reason}). What is here is "
                    "kept: try again and it goes on from there."
                )
            logger.warning("Download of %s broke (%s); going on", self._file.name, reason)
            self._wait(self._retry_waits_s[failures - 1], part.tell())

    def _stream(self, part: BinaryIO, checksum: Checksum) -> None:
        """Append what one request gives to the part."""
        start = part.tell()
        # Compressed transfers have no byte ranges.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
        url = self._listing.url(self._file)
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            # A server that ignores ranges starts over; what is here already is passed by.
            skip = start if response.status_code != 206 else 0
            for block in response.iter_bytes():
                kept = block[skip : skip + self._file.size_bytes - part.tell()]
                skip = max(0, skip - len(block))
                part.write(kept)
                checksum.update(kept)
                self._on_bytes(part.tell(), f"Downloading {self._listing.hub_id}")
                if part.tell() >= self._file.size_bytes:
                    return  # a broken server or proxy may go on sending without end

    def _wait(self, seconds: float, part_bytes: int) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._on_bytes(part_bytes, "The connection broke; trying again")
            time.sleep(min(0.25, left))


def _new_checksum(file: HubFile) -> Checksum:
    """Large files go by sha256, small ones by git's own sha1 over a header and the content."""
    if len(file.checksum) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
