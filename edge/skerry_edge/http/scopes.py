"""ASGI's scopes: of a connection, and of each request on it."""

from __future__ import annotations

import asyncio
import functools
import ssl
from typing import Any
from urllib.parse import unquote

from starlette.types import Scope

from skerry_edge.http.head import Head
from skerry_edge.http.round_trip import round_trip


def connection_scope(transport: asyncio.BaseTransport, asgi: dict[str, str]) -> Scope:
    """Return what is the same in each request of a connection."""
    scope: Scope = {
        "type": "http",
        "asgi": asgi,
        "server": _address(transport.get_extra_info("sockname")),
        "client": _address(transport.get_extra_info("peername")),
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "root_path": "",
        "round_trip": functools.partial(round_trip, transport),
    }
    if certificate := client_certificate(transport):
        scope["extensions"] = {"tls": {"client_cert_chain": [certificate]}}
    return scope


def request_scope(connection: Scope, head: Head, state: dict[str, Any]) -> Scope:
    """Return a request's scope."""
    path, _, query = head.target.partition(b"?")
    return {
        **connection,
        "http_version": head.version,
        "method": head.method,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "headers": head.fields,
        "state": state.copy(),
    }


def client_certificate(transport: asyncio.BaseTransport) -> str:
    """Return it as PEM, proven by the handshake; empty where none was asked for or shown."""
    tls = transport.get_extra_info("ssl_object")
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    return ssl.DER_cert_to_PEM_cert(shown) if shown else ""


def _address(name: Any) -> tuple[str, int] | None:
    """Return host and port of a socket of the Internet."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
