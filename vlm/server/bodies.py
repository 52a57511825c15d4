"""Read the bodies of requests within bounds of bytes and time, and check their form."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from vlm.server.refusals import RETRY_AFTER_S, Refusal
from vlm.units import MIB, format_bytes

_Body = TypeVar("_Body", bound=BaseModel)

_SHOWN_FAULTS = 3
_SMALL_BYTES = 2 * MIB
_LARGE_AT_ONCE = 4
"""Large bodies that are read and decoded at once; the others wait, so that memory lasts."""


class BodyReader:
    """The bounds of a request's body."""

    def __init__(
        self, max_bytes: int, timeout_s: float = 120.0, silent_s: float = 5.0, wait_s: float = 20.0
    ) -> None:
        """Set the bounds.

        Args:
            max_bytes: of one body; more is refused with 413.
            timeout_s: a body that takes longer to arrive is refused with 408.
            silent_s: so is one of which nothing comes for so long: it keeps others from coming.
            wait_s: a large body that gets no room for so long is refused with 429.
        """
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._silent_s = silent_s
        self._wait_s = wait_s
        self._large = anyio.CapacityLimiter(_LARGE_AT_ONCE)

    @asynccontextmanager
    async def room(self, request: Request) -> AsyncGenerator[None, None]:
        """Wait until there is room for the request's body; held while the body is used."""
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) <= _SMALL_BYTES:
            yield
            return
        try:
            with anyio.fail_after(self._wait_s):
                await self._large.acquire()
        except TimeoutError:
            raise Refusal(
                429,
                f"{_LARGE_AT_ONCE} large requests are being read already. Try again in a minute.",
                "queue_full",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        try:
            yield
        finally:
            self._large.release()

    async def read(self, request: Request) -> bytes:
        """Return the body. Raises Refusal."""
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size_bytes = 0
        try:
            with anyio.fail_after(self._timeout_s):
                stream = request.stream()
                while True:
                    with anyio.fail_after(self._silent_s):
                        part = await anext(stream, None)
                    if part is None:
                        break
                    size_bytes += len(part)
                    if size_bytes > self._max_bytes:
                        raise self._too_large()
                    parts.append(part)
        except TimeoutError:
            raise Refusal(
                408,
                f"The request did not arrive: nothing came for {self._silent_s:g} s, or not all of "
                f"it within {self._timeout_s:g} s. Send it again.",
            ) from None
        return b"".join(parts)

    async def parse(self, request: Request, form: type[_Body]) -> _Body:
        """Return the body as a `form`. Raises Refusal that names what is wrong."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # Browsers ask before they send JSON to another site; other kinds they just send.
        if kind != "application/json":
            raise Refusal(415, "Send JSON, with 'Content-Type: application/json'.")
        body = await self.read(request)
        try:
            return await anyio.to_thread.run_sync(form.model_validate_json, body)
        except ValidationError as error:
            raise refusal_of_form(error) from None

    def _too_large(self) -> Refusal:
        limit = format_bytes(self._max_bytes)
        return Refusal(
            413,
            f"The request is larger than {limit}. Send smaller or fewer pictures.",
            "request_too_large",
        )


def refusal_of_form(error: ValidationError) -> Refusal:
    """Say what is wrong with the form of a request, and where."""
    # What was sent is not repeated: it may be a picture of megabytes.
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [_describe(fault) for fault in faults[:_SHOWN_FAULTS]]
    if len(faults) > _SHOWN_FAULTS:
        shown.append(f"and {len(faults) - _SHOWN_FAULTS} more")
    first = faults[0]["loc"]
    return Refusal(
        400,
        f"The request cannot be used: {'; '.join(shown)}.",
        "invalid_json" if faults[0]["type"] == "json_invalid" else "invalid_value",
        param=str(first[0]) if first else None,
    )


def _describe(fault: Any) -> str:
    name = ""
    for part in fault["loc"]:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Input should", "must")
    return f"{name.lstrip('.')}: {message}" if name else message
