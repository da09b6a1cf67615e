"""Calls a process of this machine over HTTP for how it is."""

from __future__ import annotations

import asyncio
import ssl

from skerry_regions.address import Address

SECONDS = 3.0
MAX_STATUS_LINE = 1024

_ANY_CERTIFICATE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE


async def is_healthy(address: Address, *, seconds: float = SECONDS, tls: bool = False) -> bool:
    """Return whether `GET /healthz` there answers 200 in time. Of TLS, any certificate will do: the
    question is whether a process of ours answers, and it holds no secret."""
    host = "localhost" if address.path else f"{address.host}:{address.port}"
    request = f"GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _connect(address, _ANY_CERTIFICATE if tls else None)
            try:
                writer.write(request.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):  # ValueError: an endless line
        return False
    return status.split()[1:2] == [b"200"]


async def _connect(
    address: Address, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path, limit=MAX_STATUS_LINE)
    return await asyncio.open_connection(
        address.host, address.port, limit=MAX_STATUS_LINE, ssl=context
    )
