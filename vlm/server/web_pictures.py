"""Fetch a picture that a client named by its address: public hosts only, bounded in all ways.

Names are resolved here, every address is checked, and the checked address itself is connected
to, at each redirect anew: a name cannot point elsewhere between the check and the use.
"""

from __future__ import annotations

import http.client
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from vlm.errors import PictureError
from vlm.units import format_bytes

logger = logging.getLogger(__name__)

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 3
_READ_BYTES = 65536
_PATH_CHARACTERS = "%/:=&?~+!$,;'@()*"
# An IPv6 address that carries an IPv4 one leads to wherever a gateway takes it.
_CARRIES_IPV4 = ipaddress.ip_network("64:ff9b::/96")

_NOT_PUBLIC = "This picture's address is not on the public web. Send the picture as a data URL."
_FAILED = "The picture could not be fetched from its address. Send it as a data URL."


def public_addresses(host: str, port: int) -> list[str]:
    """Look up a host; its addresses, or none when one of them is not public."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses = [str(entry[4][0]) for entry in found]
    return addresses if all(map(is_public, addresses)) else []


def is_public(address: str) -> bool:
    """Say whether an IP address is one of the public internet, and of one host."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip.sixtofour is not None or ip.teredo is not None or ip in _CARRIES_IPV4:
            return False
    return ip.is_global and not ip.is_multicast


class WebPictures:
    """Gets pictures from the web within bounds."""

    def __init__(
        self,
        timeout_s: float = 20.0,
        find: Callable[[str, int], list[str]] = public_addresses,
    ) -> None:
        """Set the bounds.

        Args:
            timeout_s: for one picture, all redirects included.
            find: the addresses a host and port may be reached at.
        """
        self._timeout_s = timeout_s
        self._find = find

    def fetch(self, url: str, max_bytes: int) -> bytes:
        """Return what is at an address, at most `max_bytes`. Raises PictureError."""
        with _Deadline(self._timeout_s) as deadline:
            try:
                file = self._follow(url, max_bytes, deadline)
                if deadline.is_over:  # a connection that was cut looks like the end of the file
                    raise TimeoutError
                return file
            except (OSError, ValueError, http.client.HTTPException) as error:
                logger.info("a picture could not be fetched: %s", type(error).__name__)
                if deadline.is_over:
                    raise PictureError(
                        f"The picture's address did not send it within {self._timeout_s:g} s. "
                        "Send it as a data URL."
                    ) from None
                raise PictureError(_FAILED) from None

    def _follow(self, url: str, max_bytes: int, deadline: _Deadline) -> bytes:
        for _ in range(_MOST_REDIRECTS + 1):
            parts = urlsplit(url)
            with self._asked(parts, deadline) as answer:
                if answer.status == 200:
                    return _read(answer, max_bytes)
                location = answer.getheader("Location")
                if answer.status not in _REDIRECTS or not location:
                    raise PictureError(
                        f"The picture's address answered with HTTP status {answer.status}. "
                        "Check it, or send the picture as a data URL."
                    )
            url = urljoin(url, location)
        raise PictureError("The picture's address leads on and on. Send it as a data URL.")

    @contextmanager
    def _asked(self, parts: SplitResult, deadline: _Deadline) -> Iterator[http.client.HTTPResponse]:
        is_tls = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            raise PictureError(_NOT_PUBLIC)
        addresses = self._find(host, port)
        if not addresses:
            raise PictureError(_NOT_PUBLIC)
        connection = http.client.HTTPConnection(host, port)
        with closing(connection):
            connection.sock = _connect(addresses, port, host if is_tls else None, deadline)
            target = quote(parts.path or "/", safe=_PATH_CHARACTERS)
            target += f"?{quote(parts.query, safe=_PATH_CHARACTERS)}" if parts.query else ""
            headers = {"Accept": "image/*", "Accept-Encoding": "identity", "Connection": "close"}
            connection.request("GET", target, headers=headers)
            with connection.getresponse() as answer:
                yield answer


class _Deadline:
    """Cuts all connections when the time is up, however slowly the other side drips."""

    def __init__(self, timeout_s: float) -> None:
        self.is_over = False
        self._timeout_s = timeout_s
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(timeout_s, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connection: socket.socket) -> None:
        """Have a connection cut in time. Raises TimeoutError when it is too late already."""
        self._sockets.append(connection)
        connection.settimeout(self._timeout_s)
        if self.is_over:
            raise TimeoutError

    def _cut(self) -> None:
        self.is_over = True
        for connection in self._sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                logger.debug("a connection was closed already")


def _connect(
    addresses: list[str], port: int, tls_host: str | None, deadline: _Deadline
) -> socket.socket:
    """Connect to the first address that answers; `tls_host` is whom the certificate must name."""
    failure: OSError = OSError("no address")
    for address in addresses[:3]:
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            deadline.watch(connection)
            connection.connect((address, port))
            if tls_host is None:
                return connection
            secured = ssl.create_default_context().wrap_socket(connection, server_hostname=tls_host)
            deadline.watch(secured)
            return secured
        except OSError as error:
            connection.close()
            failure = error
    raise failure


def _read(answer: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Read a body. Raises PictureError as soon as it is known to be too long."""
    parts: list[bytes] = []
    size_bytes = answer.length or 0
    if size_bytes <= max_bytes:
        size_bytes = 0
        while size_bytes <= max_bytes and (part := answer.read(_READ_BYTES)):
            parts.append(part)
            size_bytes += len(part)
    if size_bytes > max_bytes:
        raise PictureError(
            f"The picture at this address is larger than {format_bytes(max_bytes)}. "
            "Save it smaller and send it as a data URL."
        )
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)
