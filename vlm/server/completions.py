"""POST /v1/chat/completions: one question to the model, answered whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from vlm.chat import Answer, AnswerStats, AskRequest, ChatEngine, Message
from vlm.errors import GenerationError, VLMError
from vlm.server.bodies import BodyReader
from vlm.server.conversations import KnownConversation, KnownConversations
from vlm.server.following import Follower
from vlm.server.guard import visitor_of
from vlm.server.models import Models
from vlm.server.questions import Question, QuestionReader
from vlm.server.refusals import Refusal, refusal_of, refuse_until_ready
from vlm.server.replies import KEEP_ALIVE, Reply, event, finish_reason
from vlm.server.schema import ChatBody
from vlm.server.stop_text import StopText

PATIENCE_S = 2.0
"""How long a stream waits for the model to begin before it commits itself to status 200: most
faults of a question show before that, and can still get their own status."""
KEEP_ALIVE_S = 5.0
"""Longest silence of a stream; proxies cut connections that are silent for longer."""


@dataclass
class Running:
    """One answer on its way to a client."""

    question: Question
    conversation: KnownConversation
    answer: Answer
    reply: Reply
    stop: StopText
    text: str = ""
    notices: list[str] = field(default_factory=list)
    stats: AnswerStats | None = None

    @property
    def end(self) -> tuple[str, AnswerStats]:
        """Why it ended and what it cost. Raises GenerationError when it was broken off."""
        reason = finish_reason(self.stats, self.stop.is_hit) if self.stats else None
        if self.stats is None or reason is None:
            raise GenerationError("The answer was broken off before its end. Ask again.")
        return reason, self.stats


class Completions:
    """The endpoint; remembers which chats it has answered."""

    def __init__(
        self,
        engine: ChatEngine,
        models: Models,
        follower: Follower,
        bodies: BodyReader,
        questions: QuestionReader,
    ) -> None:
        self._engine = engine
        self._models = models
        self._follower = follower
        self._bodies = bodies
        self._questions = questions
        self._known = KnownConversations(engine.forget)

    async def create(self, request: Request) -> Response:
        """Answer one request. Raises Refusal and VLMError."""
        async with self._bodies.room(request):
            body = await self._bodies.parse(request, ChatBody)
            refuse_until_ready(self._engine.state())
            question = await self._questions.read(body)
        reply = Reply(
            self._models.resolve(body.model),
            with_usage=bool(body.stream_options and body.stream_options.include_usage),
        )
        running = self._ask(question, visitor_of(request, body.user), reply, StopText(body.stop))
        if not body.stream:
            return await self._whole(running, request)
        events = self._events(running, request)
        await anext(events)  # what goes wrong until here gets its own status
        return _EventStream(events)

    def _ask(self, question: Question, visitor: str, reply: Reply, stop: StopText) -> Running:
        conversation, messages = self._known.begin(
            visitor, question.messages, question.max_visual_tokens
        )
        question = replace(question, messages=messages)
        try:
            answer = self._engine.ask(
                AskRequest(conversation.id, messages, question.sampling, question.max_visual_tokens)
            )
        except BaseException:
            self._known.end(conversation)
            raise
        return Running(question, conversation, answer, reply, stop)

    async def _whole(self, running: Running, request: Request) -> Response:
        async with aclosing(self._texts(running, request)) as texts:
            async for _ in texts:
                pass
        reason, stats = running.end
        return JSONResponse(running.reply.whole(running.text, reason, stats, running.notices))

    async def _events(self, running: Running, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield nothing once the model has begun, then the events of the stream."""
        is_open, said_at_s = False, time.monotonic()
        try:
            async with aclosing(self._texts(running, request)) as texts:
                async for text, has_begun in texts:
                    now_s = time.monotonic()
                    if not is_open and (has_begun or now_s - said_at_s > PATIENCE_S):
                        is_open = True
                        yield b""
                        yield running.reply.opening()
                    if text:
                        yield running.reply.text(text)
                    elif is_open and now_s - said_at_s > KEEP_ALIVE_S:
                        yield KEEP_ALIVE
                    else:
                        continue
                    said_at_s = now_s
            yield running.reply.closing(*running.end, running.notices)
        except ClientDisconnect:
            if not is_open:
                raise
        except (VLMError, Refusal) as error:
            if not is_open:
                raise
            refusal = error if isinstance(error, Refusal) else refusal_of(error)
            yield event(refusal.body())

    async def _texts(
        self, running: Running, request: Request
    ) -> AsyncGenerator[tuple[str, bool], None]:
        """Yield (new text, whether the model has begun), also in between; then keep the chat."""
        pieces = self._follower.follow(running.answer, request)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    text = running.stop.push(piece.text)
                    if piece.stats is not None:
                        running.stats = piece.stats
                        text += running.stop.flush()
                    running.text += text
                    running.notices += [n for n in piece.notices if n not in running.notices]
                    if running.stop.is_hit:
                        running.answer.stop()
                    yield text, piece.stage not in ("queued", "loading")
        finally:
            self._keep(running)

    def _keep(self, running: Running) -> None:
        """Let the chat be continued, with the answer if it is whole."""
        stats, question = running.stats, running.question
        is_whole = stats is not None and finish_reason(stats, False) and not running.stop.is_hit
        if stats is None or not is_whole:
            self._known.end(running.conversation)
            return
        answer = Message("assistant", running.text, token_ids=stats.token_ids)
        self._known.end(
            running.conversation, (*question.messages, answer), question.max_visual_tokens
        )


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
