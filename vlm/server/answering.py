"""Ask the engine what a checked body asks, and keep the chat so that it can go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from vlm.chat import Answer, AnswerStats, AskRequest, ChatEngine, Message
from vlm.errors import GenerationError
from vlm.server.conversations import KnownConversation, KnownConversations
from vlm.server.following import Follower
from vlm.server.questions import Question, QuestionReader
from vlm.server.replies import finish_reason
from vlm.server.schema import ChatBody
from vlm.server.stop_text import StopText


class Progress(NamedTuple):
    """What came since the last one: often no text, but a sign of life."""

    text: str
    has_begun: bool
    """Whether the model has begun to work on it."""


@dataclass
class Running:
    """One answer on its way to a client."""

    question: Question
    conversation: KnownConversation
    answer: Answer
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


class Answering:
    """Asks one engine for clients that send a whole chat each time."""

    def __init__(self, engine: ChatEngine, follower: Follower, questions: QuestionReader) -> None:
        self.engine = engine
        self._follower = follower
        self._questions = questions
        self._known = KnownConversations(engine.forget)

    async def read(self, body: ChatBody, first: Sequence[str | Path] = ()) -> Question:
        """Check a body and decode its pictures; see QuestionReader.read."""
        return await self._questions.read(body, first)

    def ask(self, question: Question, visitor: str) -> Running:
        """Queue a visitor's question, in an earlier chat where it goes on. Raises VLMError."""
        conversation, messages = self._known.begin(
            visitor, question.messages, question.max_visual_tokens
        )
        question = replace(question, messages=messages)
        request = AskRequest(
            conversation.id,
            messages,
            question.sampling,
            question.max_visual_tokens,
            visitor=visitor,
        )
        try:
            answer = self.engine.ask(request)
        except BaseException:
            self._known.end(conversation)
            raise
        return Running(question, conversation, answer, StopText(question.stop))

    async def follow(
        self, running: Running, is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[Progress, None]:
        """Yield the answer as it comes; then the chat can go on.

        Raises VLMError, and ClientDisconnect once nobody reads any more.
        """
        try:
            async with aclosing(self._follower.follow(running.answer, is_gone)) as pieces:
                async for piece in pieces:
                    text = running.stop.push(piece.text)
                    if piece.stats is not None:
                        running.stats = piece.stats
                        text += running.stop.flush()
                    running.text += text
                    running.notices += [n for n in piece.notices if n not in running.notices]
                    if running.stop.is_hit:
                        running.answer.stop()
                    yield Progress(text, piece.stage not in ("queued", "loading"))
        finally:
            self._keep(running)

    def _keep(self, running: Running) -> None:
        """Let the chat be gone on with, with the answer if it is whole."""
        stats, question = running.stats, running.question
        if stats is None or finish_reason(stats, False) is None or running.stop.is_hit:
            self._known.end(running.conversation)
            return
        answer = Message("assistant", running.text, token_ids=stats.token_ids)
        self._known.end(
            running.conversation, (*question.messages, answer), question.max_visual_tokens
        )
