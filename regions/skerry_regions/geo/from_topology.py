"""Places out of a topology file: its regions, the addresses of their edges, and its `nets`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from skerry_regions.geo.networks import Address, Network
from skerry_regions.geo.places import Places, Site, Whereabouts, widened
from skerry_regions.geo.ranking import Client
from skerry_regions.topology.spec import EdgeSpec, Topology
from skerry_regions.topology.zone_spec import ClientNet
from skerry_regions.view import LOCAL_LINK


def places_of(topology: Topology, elsewhere: Whereabouts | None = None) -> Places:
    """Regions with the public addresses of their edges, and what is known of clients.

    `elsewhere` is asked for clients in none of the `nets`.
    """
    spec = topology.dns
    sites = [
        Site(region, addresses)
        for region in topology.regions
        if (addresses := _addresses_in(topology, region.name))
    ]
    nets = spec.nets if spec is not None else ()
    written = _written_rtts(topology)
    clients = {_network(net): _client(net, topology, written) for net in nets}
    return Places(sites, clients, elsewhere=elsewhere)


def net_of(topology: Topology, address: Address) -> str | None:
    """The one of the `nets` that says where an address is: the longest around it."""
    nets = topology.dns.nets if topology.dns is not None else ()
    around = [net for net in nets if address in widened(_network(net))]
    return max(around, key=lambda net: _network(net).prefixlen).net if around else None


def _addresses_in(topology: Topology, region: str) -> tuple[Address, ...]:
    edges = [edge for edge in topology.edges if edge.region == region]
    return tuple(address for edge in edges for address in public_addresses(edge))


def public_addresses(edge: EdgeSpec) -> list[Address]:
    """Where clients reach an edge: as written, else where it listens when that is an address."""
    if edge.addresses:
        return [ipaddress.ip_address(each) for each in edge.addresses]
    try:
        host = ipaddress.ip_address(edge.host)
    except ValueError:
        return []
    return [] if host.is_unspecified else [host]


def _network(net: ClientNet) -> Network:
    return ipaddress.ip_network(net.net)


def _client(net: ClientNet, topology: Topology, rtts: Mapping[str, Mapping[str, float]]) -> Client:
    if net.region is None:
        return Client(location=net.coordinates, zone=net.residency)
    return Client(
        location=topology.region(net.region).location,
        region=net.region,
        rtt=rtts[net.region],
        zone=net.residency,
    )


def _written_rtts(topology: Topology) -> dict[str, dict[str, float]]:
    """What `links` say, by region; from a region to itself it is next to nothing."""
    rtts = {region.name: {region.name: LOCAL_LINK.rtt} for region in topology.regions}
    for link in topology.links:
        a, b = link.between
        if link.rtt is not None:
            rtts[a][b] = rtts[b][a] = link.rtt
    return rtts
