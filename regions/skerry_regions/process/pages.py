"""Calls processes of ours over HTTP: for their pages, and for whether they are healthy."""

from __future__ import annotations

from collections.abc import Mapping

from skerry_regions.address import Address

SECONDS = 5.0
HEALTH_SECONDS = 3.0
MAX_BYTES = 8 << 20


class NoPage(Exception):
    """The process does not answer, or not as it should."""


async def page_of(
    address: Address, path: str, *, seconds: float = SECONDS, tls: bool = False
) -> bytes:
    """Return the body of `GET path` at an address. Raises NoPage. Of TLS, any certificate will do:
    such a page holds no secret, and is sent none."""
    host = "localhost" if address.path else str(address).removeprefix("tcp:")
    url = f"{'https' if tls else 'http'}://{host}{path}"
    return await page_at(url, socket=address.path, seconds=seconds, verifies=not tls)


async def page_at(
    url: str,
    *,
    socket: str = "",
    headers: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    verifies: bool = True,
) -> bytes:
    """Return the body of `GET url`, over a unix socket where one is given. Raises NoPage."""
    import aiohttp  # 0.1 s of a start that may never call it

    connector = aiohttp.UnixConnector(socket) if socket else None
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
            client.get(url, headers=headers, allow_redirects=False, ssl=verifies) as reply,
        ):
            body = await reply.content.read(MAX_BYTES)
            while not reply.content.at_eof() and len(body) < MAX_BYTES:
                body += await reply.content.read(MAX_BYTES - len(body))
    except (TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
        raise NoPage(str(error) or type(error).__name__) from None
    if reply.status != 200 or len(body) >= MAX_BYTES:
        raise NoPage(f"HTTP status {reply.status}, {len(body)} bytes")
    return body


async def is_healthy(
    address: Address, *, seconds: float = HEALTH_SECONDS, tls: bool = False
) -> bool:
    """Return whether `GET /healthz` there answers 200 in time."""
    try:
        await page_of(address, "/healthz", seconds=seconds, tls=tls)
    except NoPage:
        return False
    return True
