"""Say over HTTP why a request was not answered, in the shape OpenAI's clients read."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from vlm.chat import ModelState
from vlm.errors import (
    BusyError,
    ContextLengthError,
    ModelError,
    PictureError,
    PromptError,
    VLMError,
)

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

RETRY_AFTER_S = 10
"""What a refused client is told to wait: about the length of a short answer on a small CPU."""

_FOLDERS = re.compile(r"""(?<![\w.:/\\~])(?:[A-Za-z]:[\\/]|~?/)(?:[^\s/\\;,()"']+[/\\])+""")
_BROKE = "The request could not be answered because of an unexpected fault; the log has it."


class Refusal(Exception):
    """A request that is answered with an error; its message is safe to show."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Make one.

        Args:
            status: of HTTP.
            message: fact, limit and what to do, in words.
            code: short and stable, for programs.
            param: the field of the request that is at fault.
            retry_after_s: when it may be tried again.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The error as OpenAI shapes it."""
        return {
            "error": {
                "message": self.message,
                "type": _error_type(self.status),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The whole answer."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413):
            # A client that is in the middle of its body would go on with it, unread.
            headers["Connection"] = "close"
        return JSONResponse(self.body(), self.status, headers)


def refusal_of(error: VLMError) -> Refusal:
    """Give one of our errors its status and code."""
    message = str(error)
    if isinstance(error, BusyError):
        return Refusal(429, message, "queue_full", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, ContextLengthError):
        return Refusal(400, message, "context_length_exceeded", param="messages")
    if isinstance(error, PictureError):
        return Refusal(400, message, "invalid_image", param="messages")
    if isinstance(error, PromptError):
        return Refusal(400, message, "invalid_value")
    if isinstance(error, ModelError):
        return Refusal(500, without_folders(message), "model_failed")
    return Refusal(500, message, "generation_failed")


def without_folders(message: str) -> str:
    """Shorten the paths in a message to their last names: clients need not know our folders."""
    return _FOLDERS.sub("", message)


def refuse_until_ready(state: ModelState) -> None:
    """Raise Refusal unless the model can answer now."""
    if state.stage == "failed":
        raise Refusal(500, without_folders(state.message), "model_failed")
    if state.stage == "closed":
        raise Refusal(503, state.message, "closing")
    if state.stage != "ready":
        message = f"{state.message or 'The model is not ready yet.'} Try again when it is ready."
        raise Refusal(503, message, "model_loading", retry_after_s=RETRY_AFTER_S)


def telling(handler: Handler) -> Handler:
    """Turn whatever a handler raises into an answer that tells no more than it should."""

    async def told(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return refusal.response()
        except VLMError as error:
            return refusal_of(error).response()
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception:
            logger.exception("a request of the API failed")
            return Refusal(500, _BROKE, "internal_error").response()

    return told


def _error_type(status: int) -> str:
    names = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    if status == 429:
        return "rate_limit_error"
    return names.get(status, "invalid_request_error" if status < 500 else "server_error")
