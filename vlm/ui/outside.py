"""Keep the browser from asking other hosts for anything: the page works unplugged.

A policy header forbids it whatever an answer contains; the page's template loses the
addresses it would show to link previews.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",  # Gradio compiles handlers
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)
_PREVIEW = re.compile(rb'[ \t]*<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\n?')


class NoOutsideRequests:
    """ASGI middleware for HTML pages; everything else passes as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; change the answer when it is an HTML page."""
        if scope["type"] == "http" and scope.get("method") in ("GET", "HEAD"):
            send = _PageSender(send)
        await self._app(scope, receive, send)


class _PageSender:
    """Holds an HTML page back until it is whole, then sends it changed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_html(message):
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        body = _PREVIEW.sub(b"", self._body)
        headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        headers += [
            (b"content-length", str(len(body)).encode()),
            (b"content-security-policy", POLICY.encode()),
            (b"referrer-policy", b"same-origin"),
        ]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _is_html(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/html")
        for name, value in message["headers"]
    )
