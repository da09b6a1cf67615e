"""One request and its answer between a connection and an ASGI application, in ASGI's terms."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from skerry_edge.http.head import Head
from skerry_edge.http.round_trip import round_trip

if TYPE_CHECKING:
    from skerry_edge.http.connection import GuardedProtocol

HIGH_WATER = 64 * 1024  # bytes of a body that is not read; beyond, the client is held up
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))
FINISHING = "skerry.finishing"  # a message of ours: the server wants the tunnel to end

logger = logging.getLogger(__name__)


class Exchange:
    """A request that the connection has read the head of, and the answer to it."""

    def __init__(self, connection: GuardedProtocol, head: Head, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._method, self._version = head.method, head.version
        self._expects_continue = head.expects_continue
        self._body = bytearray()  # that the application has not read
        self._is_body_whole = False
        self._news = asyncio.Event()  # for `receive`
        self._is_chunked = self._has_body = False
        self._owed: int | None = None  # bytes, of a body whose size was stated
        self._unsent = b""  # the head, for as long as the body may come with it
        self.keeps_alive = head.keeps_alive  # else the connection ends with the answer
        self.has_begun = self.is_complete = False  # the answer
        self._is_tunnel = False  # after an answer of 101
        self._is_finishing = False  # and the application does not know yet
        self.is_cut_off = False  # there is no client to answer

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer; the connection ends with an answer that is not whole."""
        try:
            await app(self._scope, self.receive, self.send)
        except (Exception, asyncio.CancelledError) as error:
            logger.error("a request failed", exc_info=error)
        if not self.is_complete and not self.is_cut_off:
            self._connection.fail()

    def take(self, part: bytes, *, is_last: bool) -> bool:
        """Take in a part of the body; whether more should wait until it is read."""
        if self.is_complete:
            return False  # whoever answered did not want it
        self._body += part
        self._is_body_whole = is_last
        self._news.set()
        return len(self._body) > HIGH_WATER

    def write_interim(self) -> None:
        """Write an answer that is none, where the client's version of HTTP has it."""
        if not self.has_begun and self._version != "1.0":
            self._connection.write(CONTINUE)

    def finish(self) -> None:
        """Have the connection end with this answer, and a tunnel soon."""
        self._is_finishing = True
        if self._is_tunnel:
            self._news.set()
        else:  # one that has begun said that it is not the last: the next may be on its way
            self.keeps_alive = self.keeps_alive and self.has_begun

    def cut_off(self) -> None:
        """Signal the application that the client is gone."""
        self.is_cut_off = True
        self._news.set()

    async def receive(self) -> Message:
        """Return the next message, as ASGI's `receive`."""
        if self._expects_continue and not self.has_begun:
            self._expects_continue = False
            self._connection.write(CONTINUE)
        if not self.is_cut_off and not self.is_complete:
            self._connection.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self.is_cut_off or self.is_complete:
            return {"type": "http.disconnect"}
        if self._is_tunnel and self._is_finishing:
            self._is_finishing = False
            self._news.set()  # for what came of the body
            return {"type": FINISHING}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self._is_body_whole}

    async def send(self, message: Message) -> None:
        """Take a message, as ASGI's `send`. What is sent to a client that is gone is dropped."""
        await self._connection.writable()
        if self.is_cut_off:
            return
        if not self.has_begun:
            self._begin(message)
        elif not self.is_complete:
            self._go_on(message)
        else:
            raise RuntimeError(f"{message['type']} after the answer's end")

    def _begin(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"{message['type']} before the answer's beginning")
        status: int = message["status"]
        fields = [*self._connection.default_fields, *message.get("headers", ())]
        sizes = [value for name, value in fields if name == b"content-length"]
        self._owed = int(sizes[0]) if sizes else None
        self._has_body = self._method != "HEAD" and status not in _BODILESS
        self._is_tunnel = status == HTTPStatus.SWITCHING_PROTOCOLS
        is_open_ended = self._has_body and self._owed is None and not self._is_tunnel
        self._is_chunked = is_open_ended and self._version != "1.0"
        if self._is_chunked:
            fields.append((b"transfer-encoding", b"chunked"))
        if self._expects_continue and not self._is_body_whole:
            self.keeps_alive = False  # it is not known whether the client sends its body now
        if self._is_tunnel:
            self.keeps_alive = False  # when it is over
        elif not self.keeps_alive:
            fields.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields):
            raise RuntimeError("a header of the answer holds a line's end")
        line = _STATUS_LINES.get(status, b"HTTP/1.1 %d \r\n" % status)
        self._unsent = line + lines + b"\r\n"
        self.has_begun = True
        asyncio.get_running_loop().call_soon(self._flush)
        if self._is_tunnel:
            self._connection.tunnel()

    def _flush(self) -> None:
        """Send the head, though the body lets wait."""
        if self._unsent and not self.is_cut_off:
            self._write(b"")

    def _go_on(self, message: Message) -> None:
        data: bytes = message.get("body", b"") if self._has_body else b""
        is_last = not message.get("more_body", False)
        if self._owed is not None and self._has_body:
            self._owed -= len(data)
            if self._owed < 0 or (is_last and self._owed):
                raise RuntimeError("the answer's body has not the size that was announced")
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if is_last:
                data += b"0\r\n\r\n"
        self._write(data)
        if is_last:
            self.is_complete = True
            self._news.set()
            self._connection.answered()

    def _write(self, data: bytes) -> None:
        """Write in one system call, which costs more than all that was done for it."""
        data, self._unsent = self._unsent + data, b""
        if data:
            self._connection.write(data)


def connection_scope(transport: asyncio.BaseTransport, asgi: dict[str, str]) -> Scope:
    """Return what is the same in each request of a connection, and its round trip for the first."""
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
    """Return a request's scope. How far the client is (`round_trip`) is measured once."""
    path, _, query = head.target.partition(b"?")
    scope: Scope = {
        **connection,
        "http_version": head.version,
        "method": head.method,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "headers": head.fields,
        "state": state.copy(),
    }
    connection.pop("round_trip", None)
    return scope


def client_certificate(transport: asyncio.BaseTransport) -> str:
    """Return it as PEM, proven by the handshake; empty where none was requested or shown."""
    tls = transport.get_extra_info("ssl_object")
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    return ssl.DER_cert_to_PEM_cert(shown) if shown else ""


def _address(name: Any) -> tuple[str, int] | None:
    """Return host and port of a socket of the Internet."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
