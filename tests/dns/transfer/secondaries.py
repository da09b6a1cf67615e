"""A server with a key for transfers, and queries signed with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import dns.message
import dns.name
import dns.tsig
import uvloop
from dns.rdtypes.ANY.TSIG import TSIG
from tests.dns.example import CLIENTS, ORIGIN, SITES, responder, zone

from skerry_dns.server.dns_server import DnsServer, StreamLimits
from skerry_dns.transfer.transfer import Transfers
from skerry_dns.zone import place_records
from skerry_dns.zone.zone import Zone
from skerry_regions.geo.places import Places

LOOPBACK = "127.0.0.1"
KEY = dns.tsig.Key("transfer.example.test.", bytes(32), dns.tsig.HMAC_SHA256)
AI = dns.name.from_text("ai", ORIGIN)
EVERYWHERE = place_records.everywhere(Places(SITES, CLIENTS), AI)


def transfers(of: Zone | None = None) -> Transfers:
    return Transfers({ORIGIN: partial((of or zone()).transferred, EVERYWHERE)}, KEY)


def with_server(
    test: Callable[[int], Awaitable[None]],
    of: Zone | Transfers | None = None,
    *,
    idle_seconds: float = 60.0,
) -> None:
    async def main() -> None:
        given = of if isinstance(of, Transfers) else transfers(of)
        server = DnsServer(responder(), StreamLimits(idle_seconds=idle_seconds), given)
        port = await server.listen(LOOPBACK, 0)
        try:
            await test(port)
        finally:
            await server.close()

    uvloop.run(main())


def signed_query(
    name: str = "@", rdtype: str = "AXFR", key: dns.tsig.Key = KEY
) -> dns.message.Message:
    message = dns.message.make_query(dns.name.from_text(name, ORIGIN), rdtype)
    message.use_tsig(key)
    return message


def respond(server: Transfers, sent: bytes) -> bytes:
    frames = server.respond(sent, lambda query: None, stream=True)
    assert frames is not None
    return next(frames)


def tsig_of(message: dns.message.Message) -> TSIG:
    assert message.tsig is not None
    return cast(TSIG, next(iter(message.tsig)))
