"""Where an edge takes the streams of other regions' edges, for the nodes of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from skerry_cli.home.parts import CannotStart
from skerry_regions.address import Address, AddressError
from skerry_regions.region.directory import Directory
from skerry_regions.region.gateway import POLICY, Gateway
from skerry_regions.region.placer import Routed
from skerry_regions.region.region_reports import SUMMARY_SECONDS, RegionReports
from skerry_regions.region.remote import RemoteRegion
from skerry_regions.wire.link_auth import LinkKey
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.protocol import Hello

DRAIN_SECONDS = 5.0  # for streams of other regions, which then go on elsewhere


@contextlib.asynccontextmanager
async def gateway(
    address: str,
    hello: Hello,
    zone: str,
    incarnation: int,
    directory: Directory,
    placer: Routed,
    key: LinkKey,
) -> AsyncGenerator[str]:
    """Listen while the block runs, and drain after it; gives where. No address: nowhere.

    Raises `CannotStart`.
    """
    if not address:
        yield ""
        return
    here = RemoteRegion(directory.links_here, placer.here(), POLICY)
    models = [model.id for model in hello.models]
    served = Gateway(hello.id, zone, here, RegionReports(placer, models, incarnation))
    server = NodeServer(served, hello, SUMMARY_SECONDS)
    try:
        bound = await server.listen(Address.parse(address), key)
    except (OSError, AddressError) as error:
        raise CannotStart(f"cannot listen for other regions: {error}") from None
    try:
        yield str(bound)
        await server.drain(DRAIN_SECONDS)
    finally:
        await server.close()
        await served.close()
