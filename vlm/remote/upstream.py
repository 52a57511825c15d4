"""Talk to one OpenAI-compatible server: its list of models, and the events of an answer."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import httpx2

from vlm.errors import ConfigError, ModelError, PromptError, VLMError
from vlm.remote.address import Address
from vlm.remote.faults import Asked, connection_error, status_error
from vlm.remote.messages import OTHER_WORDS

CONNECT_S = 10.0
LIST_S = 20.0
"""How long a server may take to list its models."""
MOST_ERROR_BYTES = 2**16
MOST_LIST_BYTES = 2**22
LONGEST_NAME = 200


class Upstream:
    """The connections to a server; every request has its own, which ends with it."""

    def __init__(self, address: Address, silence_s: float) -> None:
        """Open nothing yet. Raises ConfigError for a proxy that cannot be used.

        silence_s: a server that says nothing for so long is given up.
        """
        self.address = address
        self.refused: set[str] = set()
        """Fields of a request that this server does not take."""
        headers = {"Accept-Encoding": "identity"}  # packed, words would wait for each other
        if address.key:
            headers["Authorization"] = f"Bearer {address.key}"
        # Loading the authorities takes a while, and http:// asks for none; this one trusts nobody.
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._client = httpx2.AsyncClient(
                verify=True if address.url.startswith("https:") else nobody,
                headers=headers,
                timeout=httpx2.Timeout(silence_s, connect=CONNECT_S),
                # The server may close an idle connection just when it is to be used again.
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                # A proxy is for other machines, whatever the environment says.
                trust_env=not address.is_this_machine,
                follow_redirects=False,  # a redirect would carry the key to another host
            )
        except (ImportError, ValueError) as error:
            raise ConfigError(
                "The proxy that the environment names (HTTPS_PROXY, ALL_PROXY) cannot be used. "
                "Take it out, or add the server to NO_PROXY."
            ) from error

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def models(self) -> list[str] | None:
        """Return the names the server lists; None when it has no list. Raises VLMError."""
        asked = Asked(self.address)
        try:
            async with self._client.stream(
                "GET", f"{self.address.url}/models", timeout=LIST_S
            ) as response:
                if response.status_code in (404, 405, 501):
                    return None
                if response.status_code != 200:
                    raise await _refusal(response, asked)
                said = await _read(response, MOST_LIST_BYTES)
        except (httpx2.HTTPError, OSError) as error:
            raise connection_error(error, self.address) from error
        try:
            listed = json.loads(said)["data"] or []
            names = [str(entry["id"]).strip()[:LONGEST_NAME] for entry in listed]
        except (ValueError, TypeError, KeyError):
            raise ModelError(
                f"What {self.address.host} answers is no list of models. "
                "Give an address such as http://HOST:8000/v1 with --base-url."
            ) from None
        return [name for name in names if name]

    @asynccontextmanager
    async def open(
        self, body: bytes, left_out: Collection[str], asked: Asked
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a question and give the answer that begins; leaving it closes the connection.

        Raises VLMError, httpx2.HTTPError, and RefusedOption for a field that the server does
        not take and that was not left out.
        """
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, */*"}
        url = f"{self.address.url}/chat/completions"
        async with self._client.stream("POST", url, content=body, headers=headers) as response:
            if response.status_code != 200:
                error = await _refusal(response, asked)
                if isinstance(error, PromptError):
                    self._note_refused(str(error), left_out)
                raise error
            yield response

    def _note_refused(self, reason: str, left_out: Collection[str]) -> None:
        """Remember which fields a refusal names. Raises RefusedOption for new ones."""
        named = {name for name in OTHER_WORDS if re.search(rf"\b{name}\b", reason)}
        if named.difference(left_out):
            self.refused |= named
            raise RefusedOption


class RefusedOption(Exception):
    """A question that can be asked again without a field that the server does not take."""


async def _refusal(response: httpx2.Response, asked: Asked) -> VLMError:
    body = await _read(response, MOST_ERROR_BYTES)
    return status_error(response.status_code, body, response.headers, asked)


async def _read(response: httpx2.Response, most_bytes: int) -> bytes:
    """Read a body as far as it is of use."""
    body = b""
    async for packet in response.aiter_bytes():
        body += packet
        if len(body) > most_bytes:
            break
    return body[:most_bytes]
