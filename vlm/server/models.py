"""Say which model this server has, as OpenAI's clients ask for it."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vlm.chat import ChatEngine
from vlm.server.refusals import Refusal


class Models:
    """The one model of an engine under the names it goes by."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine
        self._created = int(time.time())

    async def list_all(self, request: Request) -> Response:
        """GET /v1/models: empty until it is known which model is loaded."""
        name = self._engine.state().model
        return JSONResponse({"object": "list", "data": [self._describe(name)] if name else []})

    async def show(self, request: Request) -> Response:
        """GET /v1/models/NAME. Raises Refusal for another name."""
        return JSONResponse(self._describe(self.resolve(request.path_params["name"])))

    def resolve(self, asked: str | None) -> str:
        """Return the model's full name for a name a client uses. Raises Refusal (404).

        Its short name ("Qwen3-VL-2B-Instruct"), "default" and no name at all are fine too.
        """
        name = self._engine.state().model
        if not asked or asked in (name, name.rpartition("/")[2], "default"):
            return name
        raise Refusal(
            404,
            f'This server has no model of that name; it has {name!r}. Use that name, or "default".',
            "model_not_found",
            param="model",
        )

    def _describe(self, name: str) -> dict[str, Any]:
        owner = name.rpartition("/")[0] or "local"
        return {"id": name, "object": "model", "created": self._created, "owned_by": owner}
