"""A server with workers of the fast path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode
import pytest
import uvloop
from tests.dns.example import query, responder
from tests.dns.fast.fast_answers import CACHE

from skerry_cli.composition.dns.kernels import load_dns_kernels
from skerry_dns.fast.fast_path import FastPath
from skerry_dns.server.dns_server import DnsServer

LOOPBACK = "127.0.0.1"
WORKERS = 2

Ask = Callable[[bytes], Awaitable[dns.message.Message]]


def with_server(test: Callable[[DnsServer, FastPath, Ask], Awaitable[None]], host: str) -> None:
    async def main() -> None:
        answers = responder()
        load = partial(load_dns_kernels, CACHE, lambda _what, _share: None)
        fast = FastPath(answers, WORKERS, load)
        server = DnsServer(answers, fast=fast)
        port = await server.listen(host, 0)

        async def ask(wire: bytes) -> dns.message.Message:
            return await dns.asyncquery.udp(
                dns.message.from_wire(wire), host, timeout=60, port=port
            )

        try:
            await first_answer(host, port)
            await asyncio.wait_for(fast.current.wait(), 200)
            await test(server, fast, ask)
        finally:
            await server.close()

    uvloop.run(main())


async def first_answer(host: str, port: int) -> None:
    """From the first moment. What comes in the moment of the take-over may be lost: ask again."""
    question = dns.message.from_wire(query("ai"))
    for _ in range(10):
        with contextlib.suppress(dns.exception.Timeout):
            answer = await dns.asyncquery.udp(question, host, timeout=2, port=port)
            assert answer.rcode() == dns.rcode.NOERROR
            return
    pytest.fail("nobody answers")
