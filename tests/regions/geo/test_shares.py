"""Weights and drain percentages: exact in slots, sticky, and only among regions that are near."""

from __future__ import annotations

import ipaddress
from collections import Counter

import pytest

from skerry_regions.geo.places import Places, Site, State
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.geo.shares import SLOTS, slot_of
from skerry_regions.topology.spec import TopologyRegion

FRA, AMS, NRT = (50.03, 8.54), (52.31, 4.76), (35.77, 140.39)
GERMAN = ClientOrigin(location=(50.5, 8.0))
JAPANESE = ClientOrigin(location=(35.0, 136.0))
SPREAD = 0.010  # seconds: Frankfurt and Amsterdam are equally near, and Tokyo is not


def places(
    fra: float = 1.0, ams: float = 1.0, *, drain: int = 0, spread: float | None = SPREAD
) -> Places:
    """`fra` and `ams` are weights, `drain` is Frankfurt's."""
    sites = [
        Site(
            TopologyRegion(name=name, coordinates=location),
            (ipaddress.ip_address(f"127.0.0.{number}"),),
            weight=weight,
            drain=drain if name == "fra" else 0,
        )
        for number, (name, location, weight) in enumerate(
            (("fra", FRA, fra), ("ams", AMS, ams), ("nrt", NRT, 1.0))
        )
    ]
    return Places(sites, {}, spread=spread)


def firsts(made: Places, client: ClientOrigin = GERMAN) -> list[str]:
    """The best region of each slot."""
    return [made.order(client, slot)[0] for slot in range(made.num_slots)]


@pytest.mark.parametrize(("fra", "ams", "share"), [(3, 1, 75), (1, 1, 50), (1, 99, 1), (1, 0, 100)])
def test_weights_are_exact_among_regions_that_are_equally_near(
    fra: float, ams: float, share: int
) -> None:
    assert Counter(firsts(places(fra, ams))) == Counter(fra=share, ams=100 - share)
    assert set(firsts(places(fra, ams), JAPANESE)) == {"nrt"}


def test_who_is_nowhere_is_shared_among_all() -> None:
    assert set(firsts(places(), ClientOrigin())) == {"fra", "ams", "nrt"}


@pytest.mark.parametrize("percent", [0, 1, 25, 99, 100])
def test_a_region_gives_away_so_many_percent(percent: int) -> None:
    made = places(1, 0, drain=percent)
    assert Counter(firsts(made))["fra"] == 100 - percent
    made = places(drain=percent, spread=0.0)  # by nearness alone
    assert Counter(firsts(made))["ams"] == percent
    made.state = State(down=frozenset({"ams", "nrt"}))  # there is nowhere else to go
    assert set(firsts(made)) == {"fra"}


def test_draining_further_moves_nobody_back() -> None:
    moved: set[int] = set()
    for percent in range(0, 101, 5):
        now = {
            i for i, name in enumerate(firsts(places(drain=percent, spread=0.0))) if name != "fra"
        }
        assert moved <= now
        moved = now


def test_a_dead_region_s_clients_alone_go_elsewhere() -> None:
    made = places()
    before = firsts(made)
    made.state = State(down=frozenset({"fra"}))
    assert firsts(made) == ["ams"] * SLOTS
    made.state = State()
    assert firsts(made) == before


def test_networks_are_divided_evenly_and_kept_together() -> None:
    networks = Counter(slot_of(ipaddress.IPv4Address(number << 8)) for number in range(1 << 16))
    assert set(networks) == set(range(SLOTS))
    assert max(networks.values()) < 1.2 * min(networks.values())
    for first, last in (("203.0.113.0", "203.0.113.255"), ("2001:db8::", "2001:db8:0:ff:f::1")):
        assert slot_of(ipaddress.ip_address(first)) == slot_of(ipaddress.ip_address(last))


def test_without_shares_there_is_one_slot() -> None:
    made = places(spread=None, drain=50)
    assert (made.num_slots, made.slot(ipaddress.ip_address("203.0.113.9"))) == (1, 0)
    assert firsts(made) == ["fra"]
