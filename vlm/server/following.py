"""Read an answer's blocking stream from async code, and stop the work when its reader is gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect

from vlm.chat import Answer, Piece

logger = logging.getLogger(__name__)


class Follower:
    """Threads that wait for answers; a few more than there can be questions."""

    def __init__(self, most_answers: int) -> None:
        self._limiter = anyio.CapacityLimiter(most_answers)

    async def follow(
        self, answer: Answer, is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[Piece, None]:
        """Yield the pieces up to "done".

        Raises VLMError, and ClientDisconnect once `is_gone` says that nobody reads any more.
        However it ends, the work ends with it.
        """
        pieces = iter(answer)
        is_over = False
        try:
            while not is_over:
                piece = await anyio.to_thread.run_sync(next, pieces, None, limiter=self._limiter)
                if piece is None:
                    raise RuntimeError("the engine's stream ended without its last piece")
                is_over = piece.stage == "done"
                if not is_over and await is_gone():
                    raise ClientDisconnect
                yield piece
        finally:
            if not is_over:
                answer.stop()
                logger.debug("an answer of the API was stopped before its end")
            _close(pieces)


def _close(pieces: Iterator[Piece]) -> None:
    # A thread may still be inside; then it is closed when it is collected.
    with suppress(ValueError):
        getattr(pieces, "close", lambda: None)()
