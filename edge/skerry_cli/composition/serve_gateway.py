"""The gateway of an edge: takes streams of other regions' edges for its own nodes, and reports
to the other edges of its region what it sends there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from skerry_cli.home.errors import CannotStart
from skerry_regions.address import Address, AddressError
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory
from skerry_regions.region.gateway import POLICY, AnswerCall, RegionGateway
from skerry_regions.region.region_reports import SUMMARY_SECONDS, RegionReports
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link_auth import LinkCredentials
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
    placer: CostPlacer,
    credentials: LinkCredentials,
    answer: AnswerCall,
) -> AsyncGenerator[str]:
    """Listen while the block runs, and drain after it; gives where. No address: nowhere. `answer`
    begins to answer clients of edges of other zones.

    Raises `CannotStart`.
    """
    if not address:
        yield ""
        return
    here = RemoteRegion(directory.links_here, placer.here(), POLICY)
    models = [model.id for model in hello.models]
    reports = RegionReports(hello.id, placer, models, incarnation, lambda: directory.edges)
    served = RegionGateway(hello.id, zone, here, reports, answer)
    server = NodeServer(served, hello, SUMMARY_SECONDS, directory.is_peer)
    try:
        bound = await server.listen(Address.parse(address), credentials)
    except (OSError, AddressError) as error:
        raise CannotStart(f"cannot listen for other edges: {error}") from None
    placer.sent.tell_by(server.tell_peers)
    try:
        yield str(bound)
        await server.drain(DRAIN_SECONDS)
    finally:
        await server.close()
        await served.close()
