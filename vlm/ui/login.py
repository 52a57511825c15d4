"""Ask for a login everywhere: the page, Gradio's endpoints, tools, and the API without a key.

Gradio shows the form and checks its own endpoints by a cookie. What it leaves open is closed
here, and programs may send the login as a header instead: `Basic`, or `Bearer USER:PASSWORD`,
which is what an OpenAI client makes of api_key="USER:PASSWORD". Wrong ones are bounded in rate.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vlm.errors import ConfigError
from vlm.server.attempts import Attempts
from vlm.server.guard import network_of
from vlm.server.refusals import Refusal

# What a browser needs to show the form and send it, and what tells nothing.
_OPEN = frozenset(
    (
        "", "/login", "/logout", "/theme.css", "/gradio_api/theme.css", "/favicon.ico",
        "/manifest.json", "/robots.txt", "/health", "/gradio_api/startup-events",
        "/gradio_api/login_check", "/gradio_api/user", "/gradio_api/app_id",
    )
)  # fmt: skip
_OPEN_BELOW = ("/static/", "/assets/", "/svelte/")
_ASKS_FOR_KEY = ("/v1", "/warmup", "/metrics")
_HINT = "Log in on the page, or send the user name and password as HTTP Basic."


def read_logins(given: Sequence[str] | None) -> dict[str, str]:
    """Read "USER:PASSWORD" of each --auth, else of VLM_AUTH. Raises ConfigError."""
    logins = {}
    for login in given or filter(None, [os.environ.get("VLM_AUTH")]):
        user, _, password = login.partition(":")
        if not user.strip() or not password:
            raise ConfigError(
                "--auth takes a user name and a password with a colon between them: "
                "--auth USER:PASSWORD (or VLM_AUTH, which other users of this machine cannot see)."
            )
        logins[user.strip()] = password
    return logins


class LoginNeeded:
    """ASGI middleware: lets in who logged in on the page, and who sends a login with a request."""

    def __init__(self, app: ASGIApp, logins: Mapping[str, str], has_key: bool) -> None:
        """Remember who may come in.

        has_key: the API checks a key of its own; its routes are left to it.
        """
        self._app = app
        self._logins = logins
        self._has_key = has_key
        self._attempts = Attempts()
        self._tokens = {user: secrets.token_urlsafe(16) for user in logins}
        """What stands for a user of the header in Gradio's cookie."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 401. Raises Refusal after too many wrong logins."""
        request = Request(scope)
        gradio_app = scope["app"]
        # The cookie first: clients and proxies send headers that are about another server.
        user = _logged_in(request)
        if user is None and (user := self._user_of(scope, request)) is not None:
            # Gradio's own endpoints know the cookie only.
            gradio_app.tokens[self._tokens[user]] = user
            cookie = f"access-token-unsecure-{gradio_app.cookie_id}={self._tokens[user]}"
            scope["headers"] = [*scope["headers"], (b"cookie", cookie.encode())]
        if user:
            scope.setdefault("state", {})["login"] = user
        if scope["type"] == "http" and request.method == "POST" and _is_form(scope):
            send = self._watched_form(request, send)
        if user or self._is_open(scope):
            await self._app(scope, receive, send)
        else:
            await _refusal(scope["path"])(scope, receive, send)

    def _watched_form(self, request: Request, send: Send) -> Send:
        """Count what Gradio says about a login by its form. Raises Refusal."""
        who = f"form {_address_of(request)}"
        self._attempts.check(who)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 400:
                self._attempts.note_wrong(who)
            await send(message)

        return watched

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"].rstrip("/")
        if path in _OPEN or path.startswith(_OPEN_BELOW):
            return True
        return self._asks_for_key(path)

    def _asks_for_key(self, path: str) -> bool:
        return self._has_key and (path in _ASKS_FOR_KEY or path.startswith("/v1/"))

    def _user_of(self, scope: Scope, request: Request) -> str | None:
        """Name the user of a request's header. Raises Refusal where a login is needed."""
        # Gradio's client sends an authorization header under the second name.
        headers = request.headers
        given = headers.get("authorization") or headers.get("x-hf-authorization") or ""
        login = _login_in(given)
        # A token without a colon is no guess at USER:PASSWORD.
        if b":" not in login or self._asks_for_key(scope["path"].rstrip("/")):
            return None
        # By user, so that nobody's guesses lock others out who share the address.
        named = login.decode("utf-8", "replace").partition(":")[0]
        who = f"header {_address_of(request)} {named if named in self._logins else ''}"
        try:
            self._attempts.check(who)
        except Refusal:
            if self._is_open(scope):
                return None  # right or wrong, so that guesses learn nothing here either
            raise
        # All are compared, so that the time tells nothing.
        right = [
            user
            for user, password in self._logins.items()
            if hmac.compare_digest(login, f"{user}:{password}".encode())
        ]
        if not right:
            self._attempts.note_wrong(who)
        return right[0] if right else None


def let_tools_in(page: gr.Blocks, url: str, logins: Mapping[str, str]) -> None:
    """Give the MCP server, which asks its own page over HTTP, the login it needs for that."""
    if logins and page.mcp_server_obj is not None:
        # Not above: it imports all of MCP.
        from gradio.mcp import Client  # type: ignore[attr-defined]

        login = ":".join(next(iter(logins.items()))).encode()
        headers = {
            "x-gradio-user": "mcp",
            "x-hf-authorization": f"Basic {base64.b64encode(login).decode()}",
        }
        client: Any = Client(
            url, download_files=False, verbose=False, analytics_enabled=False,
            _skip_components=False, headers=headers,
        )  # fmt: skip
        page.mcp_server_obj._client_instance = client


def _logged_in(request: Request) -> str | None:
    """Name the user whose browser has the cookie that Gradio's login form gave it."""
    gradio_app = request.scope["app"]
    names = (f"access-token{kind}-{gradio_app.cookie_id}" for kind in ("", "-unsecure"))
    users = (gradio_app.tokens.get(request.cookies.get(name)) for name in names)
    return next(filter(None, users), None)


def _is_form(scope: Scope) -> bool:
    return bool(scope["path"].rstrip("/").endswith("/login"))


def _address_of(request: Request) -> str:
    return network_of(request.client.host if request.client else "")


def _login_in(header: str) -> bytes:
    """The "USER:PASSWORD" of an Authorization header, or nothing."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True)
        except (binascii.Error, ValueError):
            return b""
    return b""


def _refusal(path: str) -> JSONResponse:
    body = Refusal(401, f"This server needs a login. {_HINT}", "login_required").body()
    # A browser asks for the password by itself, except in requests of the page's own scripts.
    is_page = path.startswith("/gradio_api/")
    headers = {} if is_page else {"WWW-Authenticate": 'Basic realm="This app", charset="UTF-8"'}
    return JSONResponse(body, 401, headers)
