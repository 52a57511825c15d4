"""Everything that programs may ask of a server, made over one engine."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from vlm.chat import ChatEngine
from vlm.config import Settings
from vlm.images import PictureLimits
from vlm.server.answering import Answering
from vlm.server.bodies import BodyReader
from vlm.server.completions import Completions
from vlm.server.following import Follower
from vlm.server.guard import guarded
from vlm.server.metrics import Metrics
from vlm.server.models import Models
from vlm.server.operating import Operating
from vlm.server.pictures import PictureReader
from vlm.server.questions import QuestionReader
from vlm.server.refusals import Handler, Refusal, telling
from vlm.server.web_pictures import WebPictures
from vlm.units import MIB


class Server:
    """The interface for programs; nothing runs before a request."""

    def __init__(self, engine: ChatEngine, settings: Settings) -> None:
        self.metrics = Metrics(engine)
        self._settings = settings
        self._follower = Follower(settings.server.queue_size + 8)
        limits = PictureLimits(
            max_px=int(settings.picture.max_megapixels * 1_000_000),
            max_file_bytes=settings.server.max_upload_bytes,
        )
        fetch = WebPictures().fetch if settings.server.remote_pictures else None
        self._pictures = PictureReader(limits, fetch)

    def answering(self, source: str) -> Answering:
        """Make what answers chats that are sent whole; counted under a source."""
        questions = QuestionReader(self._settings, self._pictures)
        return Answering(self.metrics.watch(source), self._follower, questions)

    def routes(self) -> list[BaseRoute]:
        """Make the routes of the HTTP interface."""
        answering = self.answering("api")
        # base64 makes four bytes of three; several pictures share the room of a large one.
        bodies = BodyReader(self._settings.server.max_upload_bytes * 4 // 3 + MIB)
        models = Models(answering.engine)
        completions = Completions(answering, models, bodies)
        operating = Operating(
            answering.engine,
            self.metrics,
            self._follower,
            bodies,
            self._pictures,
            self._settings.picture.max_visual_tokens,
        )
        return [
            self._route("/health", operating.health, "GET", is_open=True),
            self._route("/metrics", operating.show_metrics, "GET"),
            self._route("/warmup", operating.warm_up, "POST"),
            self._route("/v1/chat/completions", completions.create, "POST"),
            self._route("/v1/models", models.list_all, "GET"),
            self._route("/v1/models/{name:path}", models.show, "GET"),
            *(self._route("/v1/{rest:path}", _nothing_here, m) for m in ("GET", "POST")),
        ]

    def _route(self, path: str, handler: Handler, method: str, is_open: bool = False) -> Route:
        let_in = telling(handler) if is_open else guarded(handler, self._settings.server.api_key)

        async def counted(request: Request) -> Response:
            response = await let_in(request)
            self.metrics.http_requests.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, counted, methods=[method])


async def _nothing_here(request: Request) -> Response:
    raise Refusal(404, "There is nothing at this address. Ask /v1/models or /v1/chat/completions.")
