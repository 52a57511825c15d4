"""Put one question to the server and follow its answer to the end."""

from __future__ import annotations

import asyncio

import httpx2

from vlm.answer_stream import Job
from vlm.chat import AnswerStats, FinishReason, Piece
from vlm.errors import GenerationError
from vlm.remote.faults import Asked, connection_error
from vlm.remote.messages import OTHER_WORDS, make_body
from vlm.remote.stream import EventReader
from vlm.remote.transcript import Transcript
from vlm.remote.upstream import RefusedOption, Upstream
from vlm.request_checks import AnswerLimits, check_request


class Conversing:
    """One question on its way to the server, and the answer on its way back."""

    def __init__(self, upstream: Upstream, model: str, job: Job, limits: AnswerLimits) -> None:
        self._upstream = upstream
        self._job = job
        self._limits = limits
        has_pictures = any(message.pictures for message in job.request.messages)
        self._asked = Asked(upstream.address, model, has_pictures)
        self._transcript = Transcript(job, self._asked)

    def stats(self, reason: FinishReason) -> AnswerStats:
        """Return what is known of the answer so far."""
        return self._transcript.stats(reason)

    async def run(self) -> AnswerStats:
        """Ask and hand on every word; cancelling this closes the connection. Raises VLMError."""
        self._job.clock.start()
        # How far a server is with pictures and prompt it does not tell: no stage with a share.
        self._job.emit(Piece("decode"))
        while True:
            left_out = frozenset(self._upstream.refused)
            body = await asyncio.to_thread(self._make_body, left_out)
            try:
                await self._ask(body, left_out)
            except RefusedOption:
                continue
            self._tell_left_out(left_out)
            return self._transcript.finish()

    def _make_body(self, left_out: frozenset[str]) -> bytes:
        check_request(self._job.request, self._limits)
        return make_body(self._job.request, self._asked.model, left_out)

    async def _ask(self, body: bytes, left_out: frozenset[str]) -> None:
        try:
            async with self._upstream.open(body, left_out, self._asked) as response:
                await self._follow(response)
        except (httpx2.HTTPError, OSError) as error:
            if not self._transcript.has_text:
                raise connection_error(error, self._asked.address) from error
            if not self._transcript.is_finished:
                self._break_off()

    async def _follow(self, response: httpx2.Response) -> None:
        """Read events until the server says that the answer is over, or stops speaking."""
        reader, transcript = EventReader(), self._transcript
        async for packet in response.aiter_bytes():
            for event in reader.push(packet):
                transcript.take(event)
            if reader.is_done:
                return
        for event in reader.close():
            transcript.take(event)
        # Without a length, an answer that was cut off ends like one that is whole.
        has_length = not {"transfer-encoding", "content-length"}.isdisjoint(response.headers)
        if reader.is_done or transcript.is_finished or (has_length and transcript.has_text):
            return
        if transcript.has_text:
            self._break_off()
        else:
            raise GenerationError(
                f"{self._asked.address.host} ended without an answer. "
                "Check that --base-url is the address of a chat server, and try again."
            )

    def _break_off(self) -> None:
        host = self._asked.address.host
        self._transcript.break_off(f"The connection to {host} broke off.")

    def _tell_left_out(self, left_out: frozenset[str]) -> None:
        """Say which settings of the answer the server did not take."""
        quiet = {"stream_options", "max_tokens"}
        if names := [name for name in OTHER_WORDS if name in left_out - quiet]:
            self._transcript.say(
                f"{self._asked.address.host} does not take {', '.join(names)}: left out."
            )
