"""Serve the API over any engine on a real port, without the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from vlm.chat import ChatEngine
from vlm.config import Settings
from vlm.server.routes import Server


@contextmanager
def serving(engine: ChatEngine, settings: Settings | None = None) -> Iterator[str]:
    """Serve the API's routes in a thread; gives their address."""
    app = Starlette(routes=Server(engine, settings or Settings()).routes())
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end_s = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < end_s and thread.is_alive(), "the server never came"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
