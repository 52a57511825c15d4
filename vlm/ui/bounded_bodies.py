"""Refuse request bodies that are larger than this page ever sends, before they fill memory or disk.

Gradio bounds each uploaded file, but neither how many come together nor its JSON bodies, and
says nothing of a full disk. The API's own routes read within bounds of their own
(vlm/server/bodies.py).
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import anyio.to_thread
from gradio.utils import get_upload_folder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vlm.config import Settings
from vlm.server.refusals import Refusal
from vlm.ui.upload_room import MOST_UPLOADS, make_room
from vlm.units import MIB, format_bytes

logger = logging.getLogger(__name__)

_UPLOAD = "/gradio_api/upload"
_OWN_BOUNDS = ("/v1/", "/warmup")
_CLOSED = "/process_recording"
"""Gradio's screen recorder, which the page does not offer: it runs a program on what is sent."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BoundedBodies:
    """ASGI middleware that counts what comes in."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Take the bounds from the settings."""
        file_bytes = settings.server.max_upload_bytes
        self._app = app
        self._kept_bytes = MOST_UPLOADS * file_bytes
        self._upload_bytes = settings.picture.max_pictures * file_bytes + MIB
        # A picture may come as a data URL, where base64 makes four bytes of three.
        self._other_bytes = file_bytes * 4 // 3 + MIB

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 413, or 507 when the disk is full."""
        path: str = scope.get("path", "")
        if scope["type"] != "http" or path.startswith(_OWN_BOUNDS):
            await self._app(scope, receive, send)
            return
        is_upload = path.rstrip("/").endswith(_UPLOAD)
        bounded = _Bounded(receive, send, self._upload_bytes if is_upload else self._other_bytes)
        try:
            if path.endswith(_CLOSED):
                bounded.refusal = Refusal(404, "There is nothing at this address.")
            elif not bounded.is_announced_too_large(scope):
                await self._app(scope, bounded.receive, bounded.send)
        except Exception as error:
            bounded.refusal = bounded.refusal or _refusal_of_disk(error)
            if bounded.refusal is None:
                raise
        finally:
            if bounded.refusal is not None and not bounded.has_answered:
                await bounded.refusal.response()(scope, receive, send)
            if is_upload:
                folder = Path(get_upload_folder())
                await anyio.to_thread.run_sync(make_room, folder, self._kept_bytes)


class _Bounded:
    """One request whose bytes are counted."""

    def __init__(self, receive: Receive, send: Send, most_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self.has_answered = False
        self.refusal: Refusal | None = None
        """What to say instead of what the app says."""

    def is_announced_too_large(self, scope: Scope) -> bool:
        """Say whether the head of a request tells of too large a body; it is refused then."""
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._most_bytes:
            self._refuse()
        return self.refusal is not None

    async def receive(self) -> Message:
        """Hand a piece of the body on; after too many the client is as good as gone."""
        message = await self._receive()
        self._size_bytes += len(message.get("body", b""))
        if self._size_bytes > self._most_bytes:
            self._refuse()
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """Hand a piece of the answer on, unless the request is refused."""
        if self.refusal is None or self.has_answered:
            self.has_answered = True
            await self._send(message)

    def _refuse(self) -> None:
        limit = format_bytes(self._most_bytes)
        self.refusal = Refusal(
            413,
            f"The request is larger than {limit}. Send smaller or fewer pictures.",
            "request_too_large",
        )


def _refusal_of_disk(error: Exception) -> Refusal | None:
    """Say that there is no room; None for another fault."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
        return None
    logger.error("an upload could not be kept: %s", error.strerror)
    return Refusal(
        507,
        "The disk of this server is full: the file could not be kept. Free some space and add it "
        "again.",
        "disk_full",
    )
