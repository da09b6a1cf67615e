"""The sockets of the DNS server: UDP, and TCP with bounds on every connection (RFC 7766, 9210)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, cast

from skerry_dns.server.datagrams import bound
from skerry_dns.server.responder import Responder
from skerry_dns.transfer.transfer import Frames, Transfers
from skerry_regions.geo.networks import Address, client_address

LENGTH = struct.Struct("!H")
FURTHER_PORTS = 8  # that are tried before there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What one TCP client may take."""

    connections: int = 1024
    connections_per_address: int = 16
    idle_seconds: float = 10.0  # between whole queries, so that a trickle of bytes does not count
    queries: int = 1000  # per connection
    unsent_bytes: int = 1 << 20  # a client that sends and does not read is gone


class FastAnswers(Protocol):
    """What answers over UDP in the server's place, as far as it can: see `FastPath`."""

    @property
    def current(self) -> asyncio.Event:
        """Set while it answers as the responder does."""
        ...

    def open(
        self,
        addresses: Sequence[tuple[int, Any]],
        answer: Callable[[bytes, Any], bytes | None],
        take_over: Callable[[], None],
    ) -> None:
        """Take UDP at addresses (family and a socket's name), and then call `take_over`."""
        ...

    async def close(self) -> None:
        """Stop answering."""
        ...

    def events(self) -> dict[str, int]:
        """Return counts since the start, by name."""
        ...

    def answers(self) -> dict[int, int]:
        """Return counts since the start, by response code."""
        ...


class DnsServer:
    """Listens until closed."""

    def __init__(
        self,
        responder: Responder,
        limits: StreamLimits | None = None,
        transfers: Transfers | None = None,
        fast: FastAnswers | None = None,
    ) -> None:
        """Without `transfers` no zone is transferred. `fast` answers over UDP, where there is
        one."""
        self.responder = responder
        self.transfers = transfers
        self.fast = fast
        self.limits = limits or StreamLimits()
        self.streams: Counter[Address] = Counter()
        self.open_streams: set[_Stream] = set()
        self.is_closed = False
        self._transports: list[asyncio.DatagramTransport] = []
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Take UDP and TCP on one port (0: any free one) and return it. Raises OSError."""
        for _ in range(0 if port else FURTHER_PORTS):
            with contextlib.suppress(OSError):  # what is free for TCP may be taken for UDP
                return await self._listen(host, 0)
        return await self._listen(host, port)

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Stream(self), host, port)
        names = [(int(each.family), each.getsockname()) for each in server.sockets]
        try:
            for family, name in names:
                udp = bound(name, family, is_shared=self.fast is not None)
                made, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=udp)
                self._transports.append(made)
        except OSError:
            server.close()
            self._leave_datagrams()
            raise
        self._servers.append(server)
        if self.fast is not None:
            self.fast.open(names, self._respond_once, take_over=self._leave_datagrams)
        return int(names[0][1][1])

    def _leave_datagrams(self) -> None:
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def respond(self, query: bytes, address: Address, *, stream: bool) -> Frames | None:
        """Return messages that answer a query; None when no answer is due."""

        def answer(query: bytes) -> bytes | None:
            return self.responder.respond(query, address, stream=stream)

        if self.transfers is not None:
            frames = self.transfers.respond(query, answer, stream=stream)
            if frames is not None:
                return frames
        plain = answer(query)
        return None if plain is None else iter([plain])

    def _respond_once(self, query: bytes, host: str) -> bytes | None:
        """Return what one datagram is answered with."""
        return next(self.respond(query, client_address(host), stream=False) or iter(()), None)

    async def close(self) -> None:
        """Stop listening, and close connections once what was answered is sent."""
        self.is_closed = True
        if self.fast is not None:
            await self.fast.close()
        self._leave_datagrams()
        for server in self._servers:
            server.close()
        for stream in tuple(self.open_streams):
            stream.leave()
        await asyncio.sleep(0)  # closed transports leave in the loop's next round


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self._own: tuple[str, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # uvloop's is none by type
        host, port = transport.get_extra_info("sockname")[:2]
        self._own = (str(host), int(port))

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        # No client sends from port 0, and a packet "from ourselves" would be answered for ever.
        if self._transport is None or addr[1] == 0 or addr[:2] == self._own:
            return
        for answer in self._server.respond(data, client_address(addr[0]), stream=False) or ():
            self._transport.sendto(answer, addr)


class _Stream(asyncio.Protocol):
    """One TCP connection: queries one after another, each preceded by its length."""

    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._queries = 0
        self._sending: Frames | None = None  # the rest of an answer of several messages
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._address: Address = ipaddress.IPv4Address(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None:  # it has gone again
            self._transport.abort()
            return
        self._address = client_address(peer[0])
        streams, limits = self._server.streams, self._server.limits
        streams[self._address] += 1
        self._server.open_streams.add(self)
        if (
            self._server.is_closed  # it was accepted before
            or streams[self._address] > limits.connections_per_address
            or streams.total() > limits.connections
        ):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(limits.unsent_bytes)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._answer_all()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._transport is not None and self._sending is None:
            self._transport.abort()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._sending is not None:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.open_streams.discard(self)
        streams = self._server.streams
        streams[self._address] -= 1
        if streams[self._address] <= 0:
            del streams[self._address]

    def _answer_all(self) -> None:
        while self._sending is None and (query := self._next_query()) is not None:
            self._answer(query)

    def _next_query(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._buffer)
        end = LENGTH.size + length
        if len(self._buffer) < end:
            return None
        query = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        return query

    def _answer(self, query: bytes) -> None:
        self._queries += 1
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        frames = self._server.respond(query, self._address, stream=True)
        if frames is None or self._queries > self._server.limits.queries:
            transport.close()
            return
        self._write(transport, next(frames))
        following = next(frames, None)
        if following is not None:
            transport.pause_reading()
            self._sending = chain([following], frames)
            self._send()

    def _send(self) -> None:
        """Send one message of a transfer; the next one after others had their turn, and while the
        client reads."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._sending is None or self._is_full:
            return
        message = next(self._sending, None)
        if message is not None:
            self._write(transport, message)
            if not self._is_full:
                asyncio.get_running_loop().call_soon(self._send)
            return
        self._sending = None
        transport.resume_reading()
        self._answer_all()

    def _write(self, transport: asyncio.Transport, message: bytes) -> None:
        transport.write(LENGTH.pack(len(message)) + message)
        self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        if self._transport is not None:
            self._timer = loop.call_later(self._server.limits.idle_seconds, self.leave)

    def leave(self) -> None:
        """Close; abort where what was sent is not read, since closing would not end then."""
        if self._transport is not None:
            (self._transport.abort if self._is_full else self._transport.close)()
