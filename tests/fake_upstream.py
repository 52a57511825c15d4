"""A small OpenAI-compatible server on this machine that answers as oddly as a test wants."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from vlm.chat import AskRequest, Message, Piece
from vlm.remote.engine import RemoteEngine

Make = Callable[..., RemoteEngine]
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 226, "completion_tokens": 12, "total_tokens": 238}


def event(**fields: object) -> bytes:
    """One event as servers write it: text as it is, not as escapes."""
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def chunk(text: str | None = None, reason: str | None = None, **more: object) -> bytes:
    """One chunk of an answer."""
    delta = {} if text is None else {"content": text}
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": reason}], **more)


def words(*texts: str) -> list[bytes]:
    """A whole good stream of these texts."""
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    usage = event(choices=[], usage=USAGE)
    return [role, *(chunk(text) for text in texts), chunk(reason="stop"), usage, DONE]


@dataclass
class Upstream:
    """What the server answers, and what it was asked."""

    packets: list[bytes] = field(default_factory=lambda: words("A ", "red ", "circle."))
    status: int = 200
    body: bytes = b""
    """Of an answer that is no success."""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    framing: Literal["chunked", "close"] = "chunked"
    is_cut: bool = False
    """Whether a chunked answer ends without its last chunk."""
    holds: Literal["", "before", "after"] = ""
    """Whether the connection stays open before or after the packets until the client leaves."""
    pause_s: float = 0.0
    """Between two packets."""
    refuses: str = ""
    """A field that makes it answer 400 and name it."""
    models_status: int = 200
    models: bytes = json.dumps({"data": [{"id": "lab/first-2B"}, {"id": "other"}]}).encode()
    host: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    request_headers: list[dict[str, str]] = field(default_factory=list)
    left_at: list[float] = field(default_factory=list)
    """Moments at which clients closed connections that were held (time.monotonic)."""
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """What --base-url is given."""
        return f"http://{self.host}/v1"


class _Handler(BaseHTTPRequestHandler):
    upstream: Upstream
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        upstream = self.upstream
        upstream.request_headers.append(dict(self.headers.items()))
        if self.path == "/v1/models":
            self._whole(upstream.models_status, upstream.models)
        else:
            self._whole(404, b"<html>nothing here</html>")

    def do_POST(self) -> None:
        upstream = self.upstream
        upstream.request_headers.append(dict(self.headers.items()))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        upstream.requests.append(body)
        if upstream.holds == "before":
            self._hold()
        elif upstream.refuses in body:
            told = {"error": {"message": f"Unsupported parameter: '{upstream.refuses}'"}}
            self._whole(400, json.dumps(told).encode())
        elif upstream.status != 200:
            self._whole(upstream.status, upstream.body)
        else:
            self._stream()

    def _whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        for name, value in self.upstream.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        upstream = self.upstream
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", upstream.content_type)
        self.send_header("Connection", "close")
        is_chunked = upstream.framing == "chunked"
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for packet in upstream.packets:
            time.sleep(upstream.pause_s)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(packet), packet) if is_chunked else packet)
        if upstream.holds == "after":
            self._hold()
        elif is_chunked and not upstream.is_cut:
            self.wfile.write(b"0\r\n\r\n")

    def _hold(self) -> None:
        """Say nothing until the client is gone."""
        self.close_connection = True
        while not self.upstream.is_over.is_set():
            ready, _, _ = select.select([self.connection], [], [], 0.02)
            if ready and self.connection.recv(1024) == b"":
                self.upstream.left_at.append(time.monotonic())
                return

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running_upstream(**fields: Any) -> Iterator[Upstream]:
    """Serve on a free port until the block ends."""
    upstream = Upstream(**fields)
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    upstream.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield upstream
    finally:
        upstream.is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def question(text: str = "What is it?", name: str = "a", **more: Any) -> AskRequest:
    return AskRequest(name, (Message("user", text),), **more)


def read(answer: Any) -> tuple[str, Piece, list[str]]:
    pieces = list(answer)
    notices = [notice for piece in pieces for notice in piece.notices]
    return "".join(piece.text for piece in pieces), pieces[-1], notices
