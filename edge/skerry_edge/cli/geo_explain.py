"""What `skerry geo explain` says: where an address is, by whose word, and its regions in order."""

from __future__ import annotations

import math

from skerry_edge.cli.output import say
from skerry_edge.geo.from_topology import places_of
from skerry_edge.geo.networks import Address
from skerry_edge.geo.ranking import seconds_to
from skerry_regions.topology import Topology


def explain(topology: Topology, address: Address) -> None:
    places = places_of(topology)
    client, scope = places.locate(address)
    where = "nobody knows where" if client.location is None else f"near {_degrees(client.location)}"
    bound = f", bound to {client.zone}" if client.zone else ""
    say(f"{address} is {where}{bound}; true of the /{scope} around it.")
    order = places.order(client)
    for rank, name in enumerate(order, 1):
        seconds = seconds_to(topology.region(name), client)
        reason = (
            "no distance: as the file orders" if math.isinf(seconds) else f"{seconds * 1e3:.0f} ms"
        )
        say(f"{rank}. {name} ({reason})")
    if not order:
        say("No region may serve it.")


def _degrees(location: tuple[float, float]) -> str:
    latitude, longitude = location
    return f"{latitude:.1f}, {longitude:.1f}"
