"""Real sockets: UDP, TCP with its bounds, both on one port."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import dns.asyncquery
import dns.flags
import dns.message
import pytest
import uvloop
from tests.dns.example import query, responder

from skerry_dns.server.dns_server import DnsServer, StreamLimits

LOOPBACK = "127.0.0.1"
LIMITS = StreamLimits(connections_per_address=2, queries=3)


def with_server(test: Callable[[int], Awaitable[None]], limits: StreamLimits = LIMITS) -> None:
    async def main() -> None:
        server = DnsServer(responder(), limits)
        port = await server.listen(LOOPBACK, 0)
        try:
            await test(port)
        finally:
            await server.close()

    uvloop.run(main())


async def read(reader: asyncio.StreamReader) -> dns.message.Message:
    (length,) = struct.unpack("!H", await reader.readexactly(2))
    return dns.message.from_wire(await reader.readexactly(length))


def framed(name: str) -> bytes:
    data = query(name)
    return struct.pack("!H", len(data)) + data


def test_connections_end_with_the_server() -> None:
    async def main() -> None:
        server = DnsServer(responder(), LIMITS)
        port = await server.listen(LOOPBACK, 0)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(framed("static"))
        assert (await read(reader)).answer
        await server.close()
        assert await reader.read() == b""
        assert server.open_streams == set()
        assert not server.streams
        writer.close()

    uvloop.run(main())


def test_udp_and_a_retry_over_tcp_for_what_was_cut() -> None:
    async def test(port: int) -> None:
        question = dns.message.make_query("many.example.test", "TXT", use_edns=0)
        answer, over_tcp = await dns.asyncquery.udp_with_fallback(
            question, LOOPBACK, timeout=60, port=port
        )
        assert over_tcp
        assert len(answer.answer) == 1
        answer = await dns.asyncquery.udp(
            dns.message.make_query("static.example.test", "A"), LOOPBACK, timeout=60, port=port
        )
        assert answer.flags & dns.flags.AA

    with_server(test)


def test_queries_in_a_row_on_one_connection_up_to_the_limit() -> None:
    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        data = b"".join(framed(name) for name in ("static", "nothing", "ai", "static"))
        for byte in data[:5]:  # in the smallest pieces
            writer.write(bytes([byte]))
            await writer.drain()
        writer.write(data[5:])
        answers = [await read(reader) for _ in range(3)]
        assert [len(answer.answer) for answer in answers] == [1, 0, 1]
        assert await reader.read() == b""  # the fourth is one too many
        writer.close()

    with_server(test)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\x50half a query"])
def test_who_sends_nothing_whole_is_disconnected(sent: bytes) -> None:
    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()

    with_server(test, StreamLimits(idle_seconds=0.3))


def test_who_is_gone_before_being_greeted_is_no_error() -> None:
    async def test(port: int) -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        for _ in range(3):
            with socket.create_connection((LOOPBACK, port)) as gone:
                reset = struct.pack("ii", 1, 0)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(framed("static"))
        assert len((await read(reader)).answer) == 1
        writer.close()
        assert errors == []

    with_server(test)


def test_one_address_has_only_so_many_connections() -> None:
    async def test(port: int) -> None:
        held = [await asyncio.open_connection(LOOPBACK, port) for _ in range(2)]
        for reader, writer in held:
            writer.write(framed("static"))
            await read(reader)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(framed("static"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await read(reader)
        for _, each in (*held, (reader, writer)):
            each.close()

    with_server(test, StreamLimits(connections_per_address=2))
