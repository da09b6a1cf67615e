"""Measured round trips of networks against what is stated of them."""

from __future__ import annotations

import ipaddress

import pytest

from skerry_regions.geo.networks import Address, Network
from skerry_regions.geo.places import Places, Site
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.geo.whereabouts import GeoPlace, KnownPlaces
from skerry_regions.topology.spec import TopologyRegion

FRA, IAD = (50.03, 8.54), (38.94, -77.46)
KANSAS = (39.7, -96.4)  # where country data has whatever is registered in the US
NETWORK = ipaddress.ip_network("203.0.113.0/24")
SITES = [
    Site(TopologyRegion(name=name, coordinates=at), (ipaddress.ip_address("127.0.0.1"),))
    for name, at in (("fra", FRA), ("iad", IAD))
]


class Kansas:
    """Says of everybody that they are there."""

    path, built_at = None, 0.0

    def place(self, address: Address) -> tuple[GeoPlace | None, int]:
        return GeoPlace("US", KANSAS), 8


def places(known: KnownPlaces, nets: dict[Network, ClientOrigin] | None = None) -> Places:
    return Places(SITES, nets or {}, known)


def best(made: Places, address: str) -> str:
    return made.order(made.locate(ipaddress.ip_address(address))[0])[0]


@pytest.mark.parametrize(
    ("rtt", "moves"),
    [
        ({"fra": 0.002}, True),  # 2 ms from Frankfurt is not Kansas
        ({"fra": 0.004, "iad": 0.09}, True),
        ({"iad": 0.02}, False),  # it is nearest anyway
        ({"iad": 0.09}, False),  # and all else seems to be farther still
        ({"iad": 0.3}, True),  # which it cannot be now
    ],
)
def test_what_is_measured_counts_where_it_leads_elsewhere(
    rtt: dict[str, float], moves: bool
) -> None:
    known = KnownPlaces([Kansas()])  # type: ignore[list-item]  # it is no file
    made = places(known)
    assert best(made, "203.0.113.9") == "iad"
    moved = made.moved_by({NETWORK: rtt})
    assert moved == ({NETWORK: rtt} if moves else {})
    after = places(known.with_measured(moved))
    assert best(after, "203.0.113.9") == ("fra" if moves else "iad")
    assert best(after, "203.0.112.9") == "iad"  # the next network
    assert after.locate(ipaddress.ip_address("203.0.113.9"))[1] == (24 if moves else 8)
    assert after.moved_by({NETWORK: rtt}) == moved  # by what is stated, not by what was measured


def test_what_an_operator_has_written_down_stays() -> None:
    known = KnownPlaces([Kansas()])  # type: ignore[list-item]
    made = places(known, {NETWORK: ClientOrigin(location=IAD)})
    assert made.moved_by({NETWORK: {"fra": 0.002}}) == {}


def test_measurements_alone() -> None:
    made = places(KnownPlaces((), measured={NETWORK: {"iad": 0.01}}))
    assert best(made, "203.0.113.9") == "iad"
    assert best(made, "203.0.114.9") == "fra"  # nobody knows: as the file orders
