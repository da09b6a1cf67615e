"""What an edge reports of its region to DNS servers: `GET /regions`.

These are the figures by which the edge's own router places requests, and nothing else.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MAX_SECONDS = 1e6
MAX_REGIONS = 1000
MAX_CLIENTS = 4096

Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]


class RegionReport(Struct, frozen=True, kw_only=True):
    """Of one edge, now."""

    region: Annotated[str, Meta(max_length=256)] = ""  # in which it stands
    queue_seconds: Seconds | None = None
    """Prefill work that waits at the region's median node; None where no node is known."""
    rtt_seconds: Annotated[
        dict[Annotated[str, Meta(max_length=256)], Seconds], Meta(max_length=MAX_REGIONS)
    ] = {}
    """To each region and back: to the nearest of its members."""
    client_rtt_seconds: Annotated[
        dict[Annotated[str, Meta(max_length=43)], Seconds], Meta(max_length=MAX_CLIENTS)
    ] = {}
    """To clients and back, by network; for those who request it."""
