"""POST /v1/chat/completions: one question to the model, answered whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from vlm.errors import VLMError
from vlm.server.answering import Answering, Running
from vlm.server.bodies import BodyReader
from vlm.server.guard import visitor_of
from vlm.server.models import Models
from vlm.server.refusals import Refusal, refusal_of, refuse_until_ready
from vlm.server.replies import KEEP_ALIVE, Reply, event
from vlm.server.schema import ChatBody

PATIENCE_S = 2.0
"""How long a stream waits for the model to begin before it commits itself to status 200: most
faults of a question show before that, and can still get their own status."""
KEEP_ALIVE_S = 5.0
"""Longest silence of a stream; proxies cut connections that are silent for longer."""


class Completions:
    """The endpoint."""

    def __init__(self, answering: Answering, models: Models, bodies: BodyReader) -> None:
        self._answering = answering
        self._models = models
        self._bodies = bodies

    async def create(self, request: Request) -> Response:
        """Answer one request. Raises Refusal and VLMError."""
        async with self._bodies.room(request):
            body = await self._bodies.parse(request, ChatBody)
            refuse_until_ready(self._answering.engine.state())
            question = await self._answering.read(body)
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        reply = Reply(self._models.resolve(body.model), wants_usage)
        running = self._answering.ask(question, visitor_of(request, body.user))
        if not body.stream:
            async with aclosing(self._answering.follow(running, request.is_disconnected)) as parts:
                async for _ in parts:
                    pass
            return JSONResponse(reply.whole(running.text, *running.end, running.notices))
        events = self._events(running, reply, request)
        await anext(events)  # what goes wrong until here gets its own status
        return _EventStream(events)

    async def _events(
        self, running: Running, reply: Reply, request: Request
    ) -> AsyncGenerator[bytes, None]:
        """Yield nothing once the model has begun, then the events of the stream."""
        is_open, said_at_s = False, time.monotonic()
        try:
            async with aclosing(self._answering.follow(running, request.is_disconnected)) as parts:
                async for part in parts:
                    now_s = time.monotonic()
                    if not is_open and (part.has_begun or now_s - said_at_s > PATIENCE_S):
                        is_open = True
                        yield b""
                        yield reply.opening()
                    if part.text:
                        yield reply.text(part.text)
                    elif is_open and now_s - said_at_s > KEEP_ALIVE_S:
                        yield KEEP_ALIVE
                    else:
                        continue
                    said_at_s = now_s
            yield reply.closing(*running.end, running.notices)
        except ClientDisconnect:
            if not is_open:
                raise
        except (VLMError, Refusal) as error:
            if not is_open:
                raise
            refusal = error if isinstance(error, Refusal) else refusal_of(error)
            yield event(refusal.body())


class _EventStream(StreamingResponse):
    """A stream of events whose source is closed whatever ends it."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._events.aclose()
