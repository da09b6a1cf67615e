"""Skerry's DNS server for `bench.dns`: `dns_skerry fast|slow PORT KEYFILE CACHE`.

As `skerry dns` runs it with one worker, but for two things: the network that asks for everything
here is exempt from limits, and the cookie secret is known. Others, as the resolver, are limited.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
import time
from functools import partial
from pathlib import Path

import uvloop

from bench.subjects.dns_world import places, zone
from skerry_cli.composition.dns.kernels import load_dns_kernels
from skerry_dns.fast.fast_path import FastPath
from skerry_dns.server.cookies import Cookies
from skerry_dns.server.dns_server import DnsServer
from skerry_dns.server.responder import Responder
from skerry_dns.server.response_limits import ResponseLimits
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.zone_key import ZoneKey

SECRET = bytes(16)
EXEMPT = ipaddress.ip_network("127.0.0.0/24")


async def main(way: str, port: int, key: ZoneKey, cache: Path) -> None:
    origin = zone().origin
    signed = SignedZone(zone(*key.records(origin)), key)
    signed.presign(time.time())
    responder = Responder(
        [signed.zone],
        places(),
        cookies=Cookies(SECRET),
        limits=ResponseLimits(exempt=[EXEMPT]),
        clock=time.time,
        signed={origin: signed},
    )
    load = partial(load_dns_kernels, cache, lambda _what, _share: None)
    fast = FastPath(responder, 1, load) if way == "fast" else None
    await DnsServer(responder, fast=fast).listen("127.0.0.1", port)
    if fast is not None:
        await fast.current.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    key = ZoneKey.create(Path(sys.argv[3]))
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), key, Path(sys.argv[4])))
