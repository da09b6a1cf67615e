"""What `skerry geo explain` says: where an address is, by whose word, and its regions in order."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

from skerry_cli.home.geo_sources import open_known_places
from skerry_cli.home.state import Home
from skerry_cli.output import note, say
from skerry_regions.geo.from_topology import net_of, places_of
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import Places
from skerry_regions.geo.ranking import ClientOrigin, seconds_to
from skerry_regions.geo.whereabouts import KnownPlaces, is_old
from skerry_regions.topology.spec import Topology


def explain(topology: Topology, address: Address, home: Home) -> None:
    """Raises `CannotStart` for data that cannot be used."""
    known = open_known_places(home, topology)
    places = places_of(topology, known)
    client, scope = places.locate(address)
    bound = f", bound to {client.zone}" if client.zone else ""
    source = _source(topology, address, known)
    say(f"{address} is {_where(client)}{bound} ({source}); true of the /{scope} around it.")
    order = places.order(client, places.slot(address))
    for rank, name in enumerate(order, 1):
        say(f"{rank}. {name} ({_why(topology, name, client)})")
    if not order:
        say("No region may serve it.")
    if places.num_slots > 1:
        slot = places.slot(address)
        say(f"Its network is in slot {slot} of {places.num_slots}; {_shares(places)}.")
    for each in () if known is None else known.sources:
        if is_old(each, time.time()):
            note(f"{each.path} is of {_date(each.built_at)}: `skerry geo install` renews it.")


def _where(client: ClientOrigin) -> str:
    if client.location is None:
        return "no one knows where"
    latitude, longitude = client.location
    return f"near {latitude:.1f}, {longitude:.1f}"


def _source(topology: Topology, address: Address, known: KnownPlaces | None) -> str:
    """Return whose word that is."""
    spec = topology.dns
    if (net := net_of(topology, address)) is not None:
        return f"`nets`: {net}"
    if known is not None:
        if (system := known.system(address)) is not None:
            return f"`overrides`: AS{system}"
        place, source, _ = known.place(address)
        if place is not None and source is not None:
            said = ", ".join(each for each in (place.source, place.country) if each)
            if known.overrides_country(place.country):
                return f"`overrides`: {place.country}"
            return f"{said or 'no country'}: {source.path.name} of {_date(source.built_at)}"
    if spec is not None and spec.default_region is not None:
        return f"`default_region`: {spec.default_region}"
    return "no data"


def _why(topology: Topology, name: str, client: ClientOrigin) -> str:
    if name in client.rtt:
        return f"{client.rtt[name] * 1e3:.0f} ms, by `links`"
    seconds = seconds_to(topology.region(name), client)
    if math.isinf(seconds):
        return "no distance: as the file orders"
    return f"{seconds * 1e3:.0f} ms, by distance"


def _shares(places: Places) -> str:
    shares = (
        f"{each.region.name} weighs {each.weight:g} and drains {each.drain} %"
        for each in places.sites
    )
    return "; ".join(shares)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
