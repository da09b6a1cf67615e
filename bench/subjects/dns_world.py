"""One zone and one map of clients, for every DNS server that is compared.

`ai.example.test` has one address in each of three regions; 255 networks of 65,536 addresses belong
to the regions in turn. Nobody knows anything of other clients.
"""

from __future__ import annotations

import ipaddress

import dns.name

from skerry_dns.zone.zone import Zone
from skerry_regions.geo.networks import Network
from skerry_regions.geo.places import Places, Site
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.topology.spec import TopologyRegion

ORIGIN = "example.test"
NAME = f"ai.{ORIGIN}"
TTL = 30
SOA = "@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 30"
REGIONS = {  # coordinates, address, country of its clients in a country database
    "fra": ((50.03, 8.54), "192.0.2.10", "DE"),
    "iad": ((38.94, -77.46), "192.0.2.20", "US"),
    "nrt": ((35.77, 140.39), "192.0.2.30", "JP"),
}
NETWORKS: dict[Network, str] = {
    ipaddress.ip_network(f"10.{number}.0.0/16"): list(REGIONS)[number % len(REGIONS)]
    for number in range(1, 256)
}
ASKED = "10.77.5.0"  # the client subnet of queries that have one, with 24 bits


def zone(*further: str) -> Zone:
    """As Skerry serves it."""
    origin = dns.name.from_text(ORIGIN)
    lines = [SOA, "@ 3600 IN NS ns1", "ns1 3600 IN A 127.0.0.1", *further]
    return Zone("\n".join(lines) + "\n", origin, frozenset({dns.name.from_text("ai", origin)}))


def places() -> Places:
    """Where clients are, by the coordinates of the region that they belong to."""
    sites = [
        Site(TopologyRegion(name=name, coordinates=location), (ipaddress.ip_address(address),))
        for name, (location, address, _) in REGIONS.items()
    ]
    clients = {
        network: ClientOrigin(location=REGIONS[name][0]) for network, name in NETWORKS.items()
    }
    return Places(sites, clients)


def expected(client: str) -> str:
    """The address that a client must get."""
    address = ipaddress.ip_address(client)
    region = next(name for network, name in NETWORKS.items() if address in network)
    return REGIONS[region][1]
