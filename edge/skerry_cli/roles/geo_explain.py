"""What `skerry geo explain` says: where an address is, by whose word, and its regions in order."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_cli.home.geo_install import open_geo_data
from skerry_cli.home.state import Home
from skerry_cli.output import note, say
from skerry_regions.geo.from_topology import net_of, places_of
from skerry_regions.geo.networks import Address
from skerry_regions.geo.ranking import Client, seconds_to
from skerry_regions.topology.spec import Topology

if TYPE_CHECKING:
    from skerry_regions.geo.geo_data import GeoData


def explain(topology: Topology, address: Address, home: Home) -> None:
    """Raises `CannotStart` for country data that cannot be used."""
    spec = topology.dns
    named = Path(spec.geo) if spec is not None and spec.geo else None
    data = open_geo_data(home, named)
    places = places_of(topology, data)
    client, scope = places.locate(address)
    bound = f", bound to {client.zone}" if client.zone else ""
    where = _where(topology, address, client, data)
    say(f"{address} is {where}{bound}; true of the /{scope} around it.")
    order = places.order(client)
    for rank, name in enumerate(order, 1):
        say(f"{rank}. {name} ({_why(topology, name, client)})")
    if not order:
        say("No region may serve it.")
    if data is not None and data.is_old(time.time()):
        note(f"{data.path} is of {_date(data.built_at)}: `skerry geo install` renews it.")


def _where(topology: Topology, address: Address, client: Client, data: GeoData | None) -> str:
    """The place, and whose word that is."""
    if client.location is None:
        return "nobody knows where"
    latitude, longitude = client.location
    near = f"near {latitude:.1f}, {longitude:.1f}"
    net = net_of(topology, address)
    if net is not None or data is None:
        return f"{near} (`nets`: {net})"
    place, _ = data.place(address)
    country = "" if place is None else place.country
    return f"{near} ({country or 'no country'}: {data.path.name} of {_date(data.built_at)})"


def _why(topology: Topology, name: str, client: Client) -> str:
    if name in client.rtt:
        return f"{client.rtt[name] * 1e3:.0f} ms, by `links`"
    seconds = seconds_to(topology.region(name), client)
    if math.isinf(seconds):
        return "no distance: as the file orders"
    return f"{seconds * 1e3:.0f} ms, by distance"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
