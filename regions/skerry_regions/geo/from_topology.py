"""Places out of a topology file: its regions, the addresses of their edges, and its `nets`."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import replace
from urllib.parse import urlsplit

from skerry_regions.geo.networks import Address, Network, widened
from skerry_regions.geo.places import Places, Site
from skerry_regions.geo.ranking import ClientOrigin, Location
from skerry_regions.geo.whereabouts import Overrides, Whereabouts
from skerry_regions.topology.spec import EdgeSpec, Topology
from skerry_regions.topology.zone_spec import ClientNet
from skerry_regions.view import LOCAL_LINK

HTTPS_PORT = 443


def places_of(
    topology: Topology, elsewhere: Whereabouts | None = None, *, guesses: bool = True
) -> Places:
    """Return regions with the public addresses of their edges, and what is known of clients.

    `elsewhere` is called for clients in none of the `nets`. With `guesses` those of whom nothing is
    known count as clients of the default region.
    """
    spec = topology.dns
    shares = {} if spec is None else {each.name: each for each in spec.regions}
    sites = [
        Site(
            region,
            addresses,
            _https_port(topology, region.name),
            shares[region.name].weight if region.name in shares else 1.0,
            shares[region.name].drain if region.name in shares else 0,
        )
        for region in topology.regions
        if (addresses := _addresses_in(topology, region.name))
    ]
    if spec is None:
        return Places(sites, {}, elsewhere)
    at_region = _Origins(topology)
    clients = {
        _network(net): replace(at_region.of(net.region, net.coordinates), zone=net.residency)
        for net in spec.nets
    }
    default = None
    if guesses and spec.default_region is not None:
        default = at_region.of(spec.default_region, None)
    spread = spec.spread if spec.is_shared else None
    return Places(sites, clients, elsewhere, default=default, spread=spread)


def overrides_of(topology: Topology) -> Overrides:
    """Return what the topology's `dns` section says of countries and autonomous systems."""
    spec = topology.dns
    origins = _Origins(topology)
    countries: dict[str, ClientOrigin] = {}
    systems: dict[int, ClientOrigin] = {}
    for each in () if spec is None else spec.overrides:
        origin = origins.of(each.region, each.coordinates)
        if each.country is not None:
            countries[each.country] = origin
        elif each.asn is not None:
            systems[each.asn] = origin
    return Overrides(countries, systems)


def net_of(topology: Topology, address: Address) -> str | None:
    """Return the one of the `nets` that says where an address is: the longest around it."""
    nets = topology.dns.nets if topology.dns is not None else ()
    around = [net for net in nets if address in widened(_network(net))]
    return max(around, key=lambda net: _network(net).prefixlen).net if around else None


def _addresses_in(topology: Topology, region: str) -> tuple[Address, ...]:
    edges = [edge for edge in topology.edges if edge.region == region]
    return tuple(address for edge in edges for address in public_addresses(edge))


def _https_port(topology: Topology, region: str) -> int | None:
    """Return where all edges of a region that clients reach take HTTP over TLS; None where they do
    not."""
    ports = {
        _tls_port(edge)
        for edge in topology.edges
        if edge.region == region and public_addresses(edge)
    }
    return ports.pop() if len(ports) == 1 else None


def _tls_port(edge: EdgeSpec) -> int | None:
    """Return the port by its own TLS, or by that of the URL at which others call it."""
    if edge.url is not None and edge.url.startswith("https://"):
        with contextlib.suppress(ValueError):  # what is no port cannot be published
            return urlsplit(edge.url).port or HTTPS_PORT
    return edge.port or None if edge.tls is not None else None


def public_addresses(edge: EdgeSpec) -> list[Address]:
    """Return where clients reach an edge: as written, else where it listens when that is an
    address."""
    if edge.addresses:
        return [ipaddress.ip_address(each) for each in edge.addresses]
    try:
        host = ipaddress.ip_address(edge.host)
    except ValueError:
        return []
    return [] if host.is_unspecified else [host]


def _network(net: ClientNet) -> Network:
    return ipaddress.ip_network(net.net)


class _Origins:
    """Clients as operators write them down: at a region, or at coordinates."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._rtts = _written_rtts(topology)

    def of(self, region: str | None, coordinates: Location | None) -> ClientOrigin:
        if region is None:
            return ClientOrigin(location=coordinates)
        return ClientOrigin(
            location=self._topology.region(region).location,
            region=region,
            rtt=self._rtts[region],
        )


def _written_rtts(topology: Topology) -> dict[str, dict[str, float]]:
    """Return what `links` say, by region; from a region to itself it is next to nothing."""
    rtts = {region.name: {region.name: LOCAL_LINK.rtt} for region in topology.regions}
    for link in topology.links:
        a, b = link.between
        if link.rtt is not None:
            rtts[a][b] = rtts[b][a] = link.rtt
    return rtts
