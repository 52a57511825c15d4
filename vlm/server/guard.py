"""Let in only who may ask: the API key, and no foreign page in a visitor's browser."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from vlm.server.refusals import Handler, Refusal, telling

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def guarded(handler: Handler, api_key: str) -> Handler:
    """Check the key, where one is set, and the origin before a handler; errors become answers."""

    async def checked(request: Request) -> Response:
        if api_key:
            _check_key(request, api_key)
        else:
            _check_origin(request)
        return await handler(request)

    return telling(checked)


def visitor_of(request: Request, user: str | None = None) -> str:
    """Name who asks, "PLACE/NAME" in hex: the bound that no cache crosses.

    The name is of the key and the address of the client, and the person a client says it asks
    for. Keys and persons may be invented; turns are fair between places (vlm/job_queue.py).
    """
    address = request.client.host if request.client else ""
    place = place_of(address, getattr(request.state, "login", ""))
    return f"{place}/{_hidden(given_key(request), address, user or '')}"


def place_of(address: str, login: str = "") -> str:
    """Name where a question comes from, without saying it (hex): a login, else an address."""
    return _hidden("login", login) if login else _hidden("address", network_of(address))


def network_of(address: str) -> str:
    """The part of an address that its owner cannot change at will: of IPv6 the first half."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def _hidden(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


def given_key(request: Request) -> str:
    """The key a request carries, or nothing."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _check_key(request: Request, api_key: str) -> None:
    given = given_key(request)
    # Headers are bytes that were read as Latin-1.
    if not hmac.compare_digest(given.encode("latin-1"), api_key.encode("utf-8")):
        fact = "This API key is not right." if given else "This server needs an API key."
        raise Refusal(401, f"{fact} Send 'Authorization: Bearer KEY'.", "invalid_api_key")


def _check_origin(request: Request) -> None:
    """Refuse a page of another site: without a key, its scripts could use a visitor's server."""
    origin = request.headers.get("origin")
    if origin is None:
        return
    theirs = _host_name(origin)
    ours = _host_name(f"//{request.headers.get('host', '')}")
    if theirs and (theirs == ours or {theirs, ours} <= set(_THIS_MACHINE)):
        return
    raise Refusal(
        403, "Pages of other sites may not ask here. Start the server with --api-key.", "origin"
    )


def _host_name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
