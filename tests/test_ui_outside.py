"""The policy that keeps the browser from asking other hosts stands on every HTML page."""

from __future__ import annotations

from typing import Any

from own_loop import run_async

from vlm.ui.outside import POLICY, NoOutsideRequests

PAGE = (
    b'<head>\n\t<meta property="og:image" content="https://host.test/a.jpg" />\n'
    b'<meta\n\tname="twitter:image"\n\tcontent="https://host.test/b.jpg"\n/>'
    b'<meta name="viewport" content="width=device-width" /></head>'
)


def answer(content_type: bytes, chunks: list[bytes]) -> list[dict[str, Any]]:
    """Send a response in chunks through the middleware; returns what comes out."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", content_type), (b"content-length", b"999")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for index, chunk in enumerate(chunks):
            more = index + 1 < len(chunks)
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def keep(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        scope = {"type": "http", "method": "GET"}
        await NoOutsideRequests(app)(scope, None, keep)  # type: ignore[arg-type]

    run_async(run)
    return sent


def test_a_page_gets_the_policy_and_loses_outside_addresses() -> None:
    start, body = answer(b"text/html; charset=utf-8", [PAGE[:40], PAGE[40:]])
    headers = dict(start["headers"])
    assert headers[b"content-security-policy"] == POLICY.encode()
    assert b"host.test" not in body["body"] and b"viewport" in body["body"]
    assert headers[b"content-length"] == str(len(body["body"])).encode()


def test_everything_else_streams_as_it_is() -> None:
    start, *bodies = answer(b"text/event-stream", [b"one", b"two"])
    assert b"content-security-policy" not in dict(start["headers"])
    assert [message["body"] for message in bodies] == [b"one", b"two"]


def test_the_policy_names_no_other_host() -> None:
    sources = {source for part in POLICY.split("; ") for source in part.split()[1:]}
    assert sources == {"'self'", "'none'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:"}
