"""Filters one by one, and the chain."""

from __future__ import annotations

import pytest

from skerry_regions.geo.ranking import (
    ClientOrigin,
    RegionCandidate,
    first,
    nearest,
    rank,
    resident,
    seconds_to,
    shed,
    up,
)
from skerry_regions.topology.spec import TopologyRegion

FRA = TopologyRegion(name="fra", iata="FRA", residency="eu")
IAD = TopologyRegion(name="iad", iata="IAD", residency="us")
NRT = TopologyRegion(name="nrt", iata="NRT", residency="jp")
ALL = [RegionCandidate(FRA), RegionCandidate(IAD), RegionCandidate(NRT)]
BERLIN = ClientOrigin(location=(52.5, 13.4))


def test_nearest_is_by_distance_until_there_is_a_measurement() -> None:
    assert rank(ALL, BERLIN, [nearest]) == ["fra", "iad", "nrt"]
    measured = ClientOrigin(location=(52.5, 13.4), rtt={"nrt": 0.001})
    assert rank(ALL, measured, [nearest]) == ["nrt", "fra", "iad"]
    assert rank(ALL, ClientOrigin(), [nearest]) == [
        "fra",
        "iad",
        "nrt",
    ]  # nothing known: as written
    assert seconds_to(FRA, BERLIN) == pytest.approx(0.014 + 15.7e-6 * 430, rel=0.1)


def test_what_is_down_is_left_out_unless_all_is() -> None:
    fra_down = [RegionCandidate(FRA, up=False), RegionCandidate(IAD)]
    assert rank(fra_down, BERLIN, [up, nearest]) == ["iad"]
    all_down = [RegionCandidate(FRA, up=False), RegionCandidate(IAD, up=False)]
    assert rank(all_down, BERLIN, [up, nearest]) == ["fra", "iad"]


def test_residency_holds_also_when_the_zone_is_down() -> None:
    bound = ClientOrigin(zone="eu")
    assert rank(ALL, bound, [resident, up, nearest]) == ["fra"]
    down = [RegionCandidate(FRA, up=False), RegionCandidate(IAD)]
    assert rank(down, bound, [resident, up, nearest]) == ["fra"]
    assert rank(ALL, ClientOrigin(zone="br"), [resident, up, nearest]) == []


def test_busy_regions_come_last_and_all_busy_is_none_busy() -> None:
    busy = [RegionCandidate(FRA, busy=True), RegionCandidate(IAD), RegionCandidate(NRT)]
    assert rank(busy, BERLIN, [nearest, shed]) == ["iad", "nrt", "fra"]
    all_busy = [
        RegionCandidate(NRT, busy=True),
        RegionCandidate(IAD, busy=True),
        RegionCandidate(FRA, busy=True),
    ]
    assert rank(all_busy, BERLIN, [nearest, shed, first(2)]) == ["fra", "iad"]
