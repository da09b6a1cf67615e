"""Pages of processes of this machine over HTTP, such as their metrics."""

from __future__ import annotations

import aiohttp

from skerry_regions.address import Address

SECONDS = 5.0
MAX_BYTES = 8 << 20


class NoPage(Exception):
    """The process does not answer, or not as it should."""


async def page_of(address: Address, path: str) -> bytes:
    """Return the body of `GET path` at an address, a unix socket or loopback. Raises NoPage."""
    connector = aiohttp.UnixConnector(address.path) if address.path else None
    host = "localhost" if address.path else str(address).removeprefix("tcp:")
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
            client.get(f"http://{host}{path}", allow_redirects=False) as reply,
        ):
            body = await reply.content.read(MAX_BYTES)
            while not reply.content.at_eof() and len(body) < MAX_BYTES:
                body += await reply.content.read(MAX_BYTES - len(body))
    except (TimeoutError, OSError, aiohttp.ClientError) as error:
        raise NoPage(str(error) or type(error).__name__) from None
    if reply.status != 200 or len(body) >= MAX_BYTES:
        raise NoPage(f"HTTP status {reply.status}, {len(body)} bytes")
    return body
