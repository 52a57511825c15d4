"""Turn what a request names into pictures: data URLs, uploads, and the web where allowed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from vlm.images import Picture, PictureLimits, open_picture
from vlm.server.refusals import Refusal

_DECODED_AT_ONCE = 2
"""A large picture takes hundreds of megabytes while it is decoded."""


class PictureReader:
    """What counts as a picture in a request, and within which bounds."""

    def __init__(
        self, limits: PictureLimits, fetch: Callable[[str, int], bytes] | None = None
    ) -> None:
        """Set the bounds.

        Args:
            limits: of one picture.
            fetch: gets (an http address, at most so many bytes); None where that is off.
        """
        self._limits = limits
        self._fetch = fetch
        self._limiter = anyio.CapacityLimiter(_DECODED_AT_ONCE)

    async def open(self, sources: Sequence[str | Path]) -> list[Picture]:
        """Read and decode pictures, in order: addresses of a client, or paths we trust.

        Raises Refusal and PictureError.
        """
        return await self._in_thread([partial(self._read, source) for source in sources])

    async def decode(self, files: Sequence[bytes]) -> list[Picture]:
        """Decode pictures that were sent as they are. Raises PictureError."""
        return await self._in_thread([partial(self._decode, file) for file in files])

    async def _in_thread(self, works: Sequence[Callable[[], Picture]]) -> list[Picture]:
        return [await anyio.to_thread.run_sync(work, limiter=self._limiter) for work in works]

    def _read(self, address: str | Path) -> Picture:
        if isinstance(address, Path):
            return open_picture(address, limits=self._limits)
        scheme = address[:16].partition(":")[0].lower()
        if scheme == "data":
            return self._decode(_data_of(address))
        if scheme in ("http", "https"):
            if self._fetch is None:
                raise _refusal(
                    "Addresses of pictures on the web are switched off on this server. "
                    "Send the picture itself as a data URL."
                )
            return self._decode(self._fetch(address, self._limits.max_file_bytes))
        raise _refusal(
            "A picture must be a data URL, such as data:image/jpeg;base64,... Other kinds of "
            "addresses are never opened."
        )

    def _decode(self, file: bytes) -> Picture:
        return open_picture(file, limits=self._limits)


def _data_of(address: str) -> bytes:
    """Decode a data URL. Raises Refusal."""
    head, comma, body = address.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise _refusal(
            "This data URL is not in base64. Send data:image/jpeg;base64, and the encoded file."
        )
    try:
        packed = "".join(body.split()).encode("ascii")
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise _refusal(
            "The base64 text of a picture's data URL is damaged. Encode the file again."
        ) from None


def _refusal(message: str) -> Refusal:
    return Refusal(400, message, "invalid_image_url", param="messages")
