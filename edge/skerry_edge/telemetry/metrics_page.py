"""`GET /metrics` of a process that serves no other HTTP: for its operator, never for clients.

It has no tokens, so it listens on a unix socket of its owner or on loopback only; there, a foreign
`Host` is refused, because a web page may send requests to loopback too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from skerry_regions.address import Address, AddressError, is_loopback
from skerry_regions.known_hosts import is_known_host
from skerry_regions.prometheus import CONTENT_TYPE, Metric, exposition

MAX_HEADER = 8192  # bytes
SECONDS = 5.0  # that a client has, and that it takes to send it the page

Response = tuple[str, bytes]  # status and body


class MetricsPage:
    """Serves families of metrics, one request per connection."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, address: Address) -> Address:
        """Raises OSError, or AddressError for an address that is neither unix nor loopback."""
        if not (address.path or is_loopback(address.host)):
            raise AddressError(f"{address}: metrics are served at unix: or loopback only")

        def connected() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(MAX_HEADER), self._serve)

        self._server, taken = await address.listen(connected)
        return taken

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                status, body = self._answer(await reader.readuntil(b"\r\n\r\n"))
                head = f"HTTP/1.1 {status}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the reader is gone
        finally:
            writer.close()

    def _answer(self, header: bytes) -> Response:
        request, *fields = header.decode("latin-1").split("\r\n")
        hosts = [value.strip() for name, _, value in map(_split, fields) if name == "host"]
        if len(hosts) != 1 or not is_known_host(hosts[0]):
            return "421 Misdirected Request", b"unknown host\n"
        if request.split(" ")[:2] != ["GET", "/metrics"]:
            return "404 Not Found", b"there is nothing but GET /metrics\n"
        return "200 OK", exposition(self._families())


def _split(field: str) -> tuple[str, str, str]:
    name, colon, value = field.partition(":")
    return name.lower(), colon, value
