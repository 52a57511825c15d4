"""All routes for programs, to be served beside the page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from vlm.config import Settings
from vlm.images import PictureLimits
from vlm.server.bodies import BodyReader
from vlm.server.completions import Completions
from vlm.server.following import Follower
from vlm.server.guard import guarded
from vlm.server.metrics import Metrics
from vlm.server.models import Models
from vlm.server.operating import Operating
from vlm.server.pictures import PictureReader
from vlm.server.questions import QuestionReader
from vlm.server.refusals import Handler, telling
from vlm.server.web_pictures import WebPictures
from vlm.units import MIB


def api_routes(metrics: Metrics, settings: Settings) -> list[BaseRoute]:
    """Make the routes over the engine that the metrics watch; nothing runs before a request."""
    engine = metrics.watch("api")
    limits = PictureLimits(
        max_px=int(settings.picture.max_megapixels * 1_000_000),
        max_file_bytes=settings.server.max_upload_bytes,
    )
    # base64 makes four bytes of three; several pictures share the room of a large one.
    bodies = BodyReader(settings.server.max_upload_bytes * 4 // 3 + MIB)
    # A chat is sent whole each time; its questions together may have several times as many.
    fetch = WebPictures().fetch if settings.server.remote_pictures else None
    pictures = PictureReader(limits, 4 * settings.picture.max_pictures, fetch)
    follower = Follower(settings.server.queue_size + 8)
    operating = Operating(
        engine, metrics, follower, bodies, pictures, settings.picture.max_visual_tokens
    )
    models = Models(engine)
    completions = Completions(engine, models, follower, bodies, QuestionReader(settings, pictures))
    key = settings.server.api_key

    def route(path: str, handler: Handler, method: str, is_open: bool = False) -> Route:
        let_in = telling(handler) if is_open else guarded(handler, key)
        return Route(path, _counted(let_in, metrics, path), methods=[method])

    return [
        route("/health", operating.health, "GET", is_open=True),
        route("/metrics", operating.show_metrics, "GET"),
        route("/warmup", operating.warm_up, "POST"),
        route("/v1/chat/completions", completions.create, "POST"),
        route("/v1/models", models.list_all, "GET"),
        route("/v1/models/{name:path}", models.show, "GET"),
    ]


def _counted(handler: Handler, metrics: Metrics, path: str) -> Handler:
    async def counted(request: Request) -> Response:
        response = await handler(request)
        metrics.http_requests.labels(path, str(response.status_code)).inc()
        return response

    return counted
