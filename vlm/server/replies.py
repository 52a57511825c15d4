"""The forms of answers: what the API sends, as OpenAI's clients read it."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from vlm.chat import AnswerStats

_FINISH_REASONS = {"stop": "stop", "length": "length", "loop": "length"}
"""An answer that went round in circles was cut off, like one that ran out of tokens."""

KEEP_ALIVE = b": the model is at work\n\n"
"""A comment in a stream, which clients skip and proxies take for life."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Reply:
    """One answer of the API under its name."""

    model: str
    with_usage: bool = False
    """Whether a stream ends with its usage."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, reason: str, stats: AnswerStats, notices: list[str]) -> Any:
        """The answer in one piece."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        reply = self._head("chat.completion") | {"choices": [choice], "usage": usage(stats)}
        return reply | ({"notices": notices} if notices else {})

    def opening(self) -> bytes:
        """The first event of a stream."""
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str) -> bytes:
        """An event with new text."""
        return self._chunk({"content": text})

    def closing(self, reason: str, stats: AnswerStats, notices: list[str]) -> bytes:
        """The last events of a stream."""
        events = self._chunk({}, reason, {"notices": notices} if notices else {})
        if self.with_usage:
            head = self._head("chat.completion.chunk")
            events += event(head | {"choices": [], "usage": usage(stats)})
        return events + DONE

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, more: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]} | (more or {})
        return event(chunk | ({"usage": None} if self.with_usage else {}))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def finish_reason(stats: AnswerStats, is_stop_hit: bool) -> str | None:
    """Why an answer ended, in OpenAI's words; None when it was broken off."""
    return "stop" if is_stop_hit else _FINISH_REASONS.get(stats.finish_reason)


def usage(stats: AnswerStats) -> dict[str, Any]:
    """What an answer cost, in tokens."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.new_tokens,
        "total_tokens": stats.prompt_tokens + stats.new_tokens,
        "prompt_tokens_details": {
            "cached_tokens": stats.cached_tokens,
            "image_tokens": stats.visual_tokens,
        },
    }


def event(content: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
