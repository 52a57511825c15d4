"""The endpoints of those who run the server: health, warm-up and metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vlm.chat import AskRequest, ChatEngine, ModelState
from vlm.errors import VLMError
from vlm.images import Picture
from vlm.server.bodies import BodyReader
from vlm.server.following import Follower
from vlm.server.metrics import Metrics
from vlm.server.pictures import PictureReader
from vlm.server.refusals import Refusal, refusal_of, without_folders
from vlm.server.schema import WarmupBody
from vlm.warm_up import drawn_picture, warm_up_request

_STATUS = {"ready": 200, "failed": 500}


@dataclass(frozen=True)
class Operating:
    """What these endpoints need."""

    engine: ChatEngine
    metrics: Metrics
    follower: Follower
    bodies: BodyReader
    pictures: PictureReader
    max_visual_tokens: int

    async def health(self, request: Request) -> Response:
        """200 when ready, 503 with stage and progress before, 500 with the reason when failed."""
        state = self.engine.state()
        return JSONResponse(_health(state), _STATUS.get(state.stage, 503))

    async def show_metrics(self, request: Request) -> Response:
        """Everything counted so far, for Prometheus."""
        text = await anyio.to_thread.run_sync(self.metrics.exposition)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def warm_up(self, request: Request) -> Response:
        """Answer one token about a picture, so that the first visitor does not pay for it.

        Waits for the model while it is loading.
        """
        async with self.bodies.room(request):
            picture = await self._read_picture(request)
        state = self.engine.state()
        if state.stage == "failed":
            raise Refusal(500, state.message, "model_failed")
        question = warm_up_request(picture, self.max_visual_tokens)
        began_s = time.perf_counter()
        try:
            await self._ask(question, request)
        except VLMError as error:
            raise refusal_of(error) from error
        finally:
            self.engine.forget(question.conversation_id)
        latency_ms = round(1000 * (time.perf_counter() - began_s), 1)
        return JSONResponse({"status": "ready", "latency_ms": latency_ms})

    async def _ask(self, question: AskRequest, request: Request) -> None:
        async for piece in self.follower.follow(self.engine.ask(question), request.is_disconnected):
            if piece.stats is not None and piece.stats.finish_reason == "cancelled":
                raise Refusal(503, "The warm-up was stopped. Try again.", "cancelled")

    async def _read_picture(self, request: Request) -> Picture:
        """Take the picture of the body, raw or as JSON; without one, a drawn one does."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type.startswith("image/"):
            body = await self.bodies.read(request)
            return (await self.pictures.decode([body]))[0]
        if content_type == "application/json":
            given = await self.bodies.parse(request, WarmupBody)
            if given.picture:
                return (await self.pictures.open([given.picture]))[0]
        return await anyio.to_thread.run_sync(drawn_picture)


def _health(state: ModelState) -> dict[str, Any]:
    body: dict[str, Any] = {"status": state.stage, "message": without_folders(state.message)}
    if state.stage == "ready":
        return body | {
            "model": state.model,
            "is_bundled": state.is_bundled,
            "precision": state.precision,
            "notice": state.notice,
        }
    if state.stage not in ("failed", "closed"):
        body["progress"] = (
            round(state.done_bytes / state.total_bytes, 4) if state.total_bytes else 0
        )
        body |= {
            "done_bytes": state.done_bytes,
            "total_bytes": state.total_bytes,
            "eta_s": state.eta_s,
        }
    return body
