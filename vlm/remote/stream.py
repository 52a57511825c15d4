"""Read what an OpenAI-compatible server streams, however oddly it does.

Covered: events split anywhere over packets, any line ends, comments, chunks with a role only, null
contents, no choices, no usage, no [DONE], one whole JSON answer in place of a stream, and halves
of a character in two chunks. Whatever holds text counts, the rest is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlm.errors import GenerationError

LONGEST_REASON = 300
MOST_WAITING_BYTES = 2**24
"""An event that is longer than this is no part of an answer in words."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Turns the bytes of a stream of server-sent events into JSON objects."""

    def __init__(self) -> None:
        self.is_done = False
        """True once [DONE] came."""
        self._waiting = b""
        """Bytes whose line has not ended."""
        self._data = b""
        """JSON of an event over several lines, as far as it came."""
        self._is_whole: bool | None = None
        """Whether all is one JSON object; None until the first byte that is no space."""

    def push(self, data: bytes) -> list[dict[str, Any]]:
        """Take the next bytes; give the events that are complete. Raises GenerationError."""
        self._waiting += data
        if len(self._waiting) + len(self._data) > MOST_WAITING_BYTES:
            raise GenerationError(
                "The server sent one part of an answer that is longer than any answer in words. "
                "Check that the address is one of a chat server."
            )
        if self._is_whole is None:
            self._waiting = self._waiting.lstrip(b"\xef\xbb\xbf \t\r\n")  # a byte order mark, too
            self._is_whole = self._waiting.startswith(b"{") if self._waiting else None
        if self._is_whole is not False:
            return []
        *lines, self._waiting = _LINE_END.split(self._waiting)
        if lines and not self._waiting and data.endswith(b"\r"):
            self._waiting = lines.pop() + b"\r"  # its line feed may be in the next packet
        return list(self._read(lines))

    def close(self) -> list[dict[str, Any]]:
        """Give the events of the rest, as no more bytes come."""
        rest, self._waiting = self._waiting, b""
        return list(self._read([b"data:" + rest] if self._is_whole else [rest]))

    def _read(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            if not name and not value:
                self._data = b""  # an empty line ends an event
            if name != b"data" or self.is_done:
                continue  # also comments, which some servers send to keep the connection
            if value.strip() == b"[DONE]":
                self.is_done = True
                return
            self._data += value.removeprefix(b" ")
            try:
                event = json.loads(self._data)
            except ValueError:
                continue
            self._data = b""
            if isinstance(event, dict):
                yield event


def read_events(packets: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream of server-sent events, until [DONE] or its end."""
    reader = EventReader()
    for packet in packets:
        yield from reader.push(packet)
        if reader.is_done:
            return
    yield from reader.close()


@dataclass(frozen=True)
class Part:
    """What one event of an answer holds; None and 0 where it says nothing."""

    text: str = ""
    has_thought: bool = False
    finish_reason: str | None = None
    error: Any = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    visual_tokens: int = 0


def read_part(event: Mapping[str, Any]) -> Part:
    """Read one event, a whole answer included; what is of an unknown form is passed over."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    choice = choice if isinstance(choice, dict) else {}
    said = choice.get("delta") or choice.get("message")
    said = said if isinstance(said, dict) else {}
    reason = choice.get("finish_reason")
    usage = event.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return Part(
        text=text_of(said.get("content")),
        has_thought=bool(text_of(said.get("reasoning_content") or said.get("reasoning"))),
        finish_reason=reason if isinstance(reason, str) else None,
        error=event.get("error") or None,
        prompt_tokens=count_of(usage.get("prompt_tokens")),
        completion_tokens=count_of(usage.get("completion_tokens")),
        cached_tokens=count_of(details.get("cached_tokens")),
        visual_tokens=count_of(details.get("image_tokens")),
    )


class WholeCharacters:
    """Joins characters that a server cut in two (UTF-16 halves as JSON escapes)."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """Give the text without a half at its end, which waits for the next."""
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        whole = text[: len(text) - len(self._half)]
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def error_reason(error: object) -> str:
    """Find the sentence in an error as servers write it."""
    while isinstance(error, dict):
        error = error.get("error") or error.get("message") or error.get("detail") or ""
    return " ".join(str(error).split())[:LONGEST_REASON]


def text_of(content: object) -> str:
    """Return the text of a content: a string, a list of parts, or nothing."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def count_of(value: object) -> int:
    """Return a count a server gave, 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
