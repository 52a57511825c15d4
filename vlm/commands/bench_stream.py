"""Count and time the words of an answer that an OpenAI-compatible server streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlm.errors import ModelError
from vlm.remote.stream import count_of, error_reason, text_of


@dataclass
class StreamedAnswer:
    """One answer of a server, and the moments of its tokens (time.perf_counter)."""

    asked_at: float
    first_at: float | None = None
    last_at: float | None = None
    text: str = ""
    chunks: int = 0
    """Chunks that held text, thoughts included."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    thought_tokens: int = 0
    """Of the completion, as the server counted them; it may keep them to itself."""
    has_thoughts: bool = False
    note: str = ""

    @property
    def new_tokens(self) -> int:
        """Tokens as the server counted them, else the chunks that held text."""
        if self.completion_tokens is None:
            return self.chunks
        return self.completion_tokens - (0 if self.has_thoughts else self.thought_tokens)

    @property
    def ttft_s(self) -> float | None:
        """From the request to the first text; None without any."""
        return None if self.first_at is None else self.first_at - self.asked_at

    @property
    def decode_tps(self) -> float | None:
        """Tokens after the first, over the time they took; None with fewer than two."""
        if self.first_at is None or self.last_at is None or self.new_tokens < 2:
            return None
        took_s = self.last_at - self.first_at
        return (self.new_tokens - 1) / took_s if took_s > 0 else None

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Take one event of the stream. Raises ModelError for a server's own error."""
        if error := event.get("error"):
            raise ModelError(f"The server ended its answer with an error: {error_reason(error)}")
        self._count(event.get("usage"))
        for choice in event.get("choices") or ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if not isinstance(delta, dict):
                continue
            text = text_of(delta.get("content"))
            thought = text_of(delta.get("reasoning_content") or delta.get("reasoning"))
            if text or thought:
                self.text += text
                self.has_thoughts = self.has_thoughts or bool(thought)
                self.chunks += 1
                self.first_at = now if self.first_at is None else self.first_at
                self.last_at = now

    def _count(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = count_of(usage.get("prompt_tokens")) or self.prompt_tokens
        self.completion_tokens = count_of(usage.get("completion_tokens")) or self.completion_tokens
        details = usage.get("completion_tokens_details")
        if isinstance(details, dict):
            self.thought_tokens = count_of(details.get("reasoning_tokens"))
