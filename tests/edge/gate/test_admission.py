"""Places of an edge: which requests are let in, are counted, and are ended."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from tests.edge.gate.demands import (
    FREE,
    ME,
    MODEL,
    OTHER,
    admission,
    caller,
    demand,
    enter,
    every,
    told,
)

from skerry.errors import (
    AuthenticationError,
    InvalidInput,
    Overloaded,
    RateLimited,
    SkerryError,
    Unavailable,
)
from skerry_edge.gate import meters as module
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.quotas import AccountAllowance, Allowance, ModelAllowance, Quotas
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.spending import dollars
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.models.catalog import Price


def test_without_limits_nothing_is_counted_or_told() -> None:
    entrance = admission()
    for _ in range(500):
        enter(entrance)
    assert entrance.num_requests == 500
    assert len(entrance.meters) == 0
    assert told(entrance, demand()) == {}


def test_each_choice_is_counted_where_requests_run() -> None:
    entrance = admission(every(concurrency=8))
    place = enter(entrance, choices=5)
    with pytest.raises(RateLimited, match="8 requests at once"):
        enter(entrance, choices=4)
    enter(entrance, choices=3)
    with pytest.raises(RateLimited):
        enter(entrance)
    place.leave()
    assert entrance.num_requests == 3
    enter(entrance, choices=5)
    with pytest.raises(InvalidInput, match="n: 9 choices are more than the 8") as refused:
        enter(entrance, choices=9)
    assert refused.value.param == "n"


def test_more_choices_than_an_edges_part_are_refused() -> None:
    """Four edges that let in 6 each would exceed the 8."""
    entrance = admission(every(concurrency=8), edges=lambda: 4)
    enter(entrance, choices=2).leave()
    with pytest.raises(InvalidInput, match="n: 6 choices are more than the 2"):
        enter(entrance, choices=6)


def test_choices_take_places_of_the_edge() -> None:
    entrance = admission(max_requests=8)
    with pytest.raises(InvalidInput, match="more than the 8"):
        enter(entrance, choices=9)
    place = enter(entrance, choices=8)
    with pytest.raises(Overloaded):
        enter(entrance)
    enter(entrance, tenant=OTHER).leave()  # who has none
    place.leave()
    assert entrance.num_requests == 0


def test_a_model_that_is_full_is_capacity_and_no_fault_of_the_tenant() -> None:
    of_model = ModelAllowance(model=MODEL, all_tenants=Allowance(concurrency=1))
    entrance = admission(Quotas(models={MODEL: of_model}))
    enter(entrance)
    with pytest.raises(Overloaded) as refused:
        enter(entrance, OTHER)
    assert (refused.value.http_status, refused.value.number) == (429, 3040)
    assert told(entrance, demand()) == {}
    enter(entrance, model="@cf/test/another")


def test_a_full_edge_still_has_room_for_newcomers() -> None:
    entrance = admission(max_requests=16)
    places = [enter(entrance) for _ in range(16)]
    with pytest.raises(Overloaded) as refused:
        enter(entrance)
    assert refused.value.number == 3040
    enter(entrance, OTHER)
    enter(entrance, "c" * 32)
    with pytest.raises(Overloaded):
        enter(entrance, "d" * 32)
    for place in places[:3]:
        place.leave()
    enter(entrance)


def test_running_requests_can_be_ended() -> None:
    entrance = admission()
    ended: dict[str, list[SkerryError]] = {ME: [], OTHER: []}
    for tenant, errors in ended.items():
        asyncio.run(entrance.enter(demand(tenant), on_end=errors.append))
    over = AuthenticationError("revoked")
    assert entrance.end(lambda wanted: wanted.caller.tenant == ME, over) == 1
    assert ended == {ME: [over], OTHER: []}


def test_a_request_that_is_ended_before_it_runs_is_refused() -> None:
    entrance = admission()
    place = enter(entrance)
    place.check()
    over = AuthenticationError("revoked")
    entrance.end(lambda wanted: True, over)
    with pytest.raises(AuthenticationError) as caught:
        place.check()
    assert caught.value is over


def test_a_token_with_a_cap_needs_somebody_who_counts() -> None:
    entrance = admission()
    wanted = RequestDemand(
        caller=caller(budgets=(Budget("t", Caps(per_day=1.0)),)),
        model=MODEL,
        price=FREE,
        prompt_tokens=1,
    )
    with pytest.raises(Unavailable):
        asyncio.run(entrance.enter(wanted))
    assert entrance.num_requests == 0


def test_the_most_that_a_request_can_cost() -> None:
    price = Price(prompt=1.0, cached=2.0, output=4.0)
    wanted = RequestDemand(
        caller=caller(), model=MODEL, price=price, prompt_tokens=1000, output_tokens=500
    )
    assert wanted.dollars == (1000 * 2.0 + 500 * 4.0) / 1e6
    assert dollars(price, 1000, 500, cached_tokens=400) == (600 + 800 + 2000) / 1e6


def test_meters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_METERS", 3)
    entrance = admission(every(concurrency=1))
    for i in range(10):
        enter(entrance, f"{i:032x}").leave()
    assert len(entrance.meters) == 3


def test_who_has_requests_running_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_METERS", 3)
    entrance = admission(every(concurrency=1))
    tenants = [f"{i:032x}" for i in range(5)]
    places = [enter(entrance, tenant) for tenant in tenants]
    for tenant in tenants:
        with pytest.raises(RateLimited):
            enter(entrance, tenant)
    for place in places:
        place.leave()
    enter(entrance, OTHER)
    assert (len(entrance.meters), entrance.num_requests) == (3, 1)
    with pytest.raises(RateLimited):
        enter(entrance, OTHER)


def test_who_has_a_cap_is_refused_while_usage_cannot_be_written(tmp_path: Path) -> None:
    """A full disk: of 150 answers 5 rows were left after a kill."""
    seconds = [10.0]
    spending = SqliteSpending(tmp_path / "spending.db")
    entrance = Admission(
        quotas=Quotas(every_tenant=AccountAllowance(), unwritten_seconds=10.0),
        spending=spending,
        unwritten=lambda: seconds[0],
    )
    capped = RequestDemand(
        caller=caller(budgets=(Budget("t", Caps(per_day=1.0)),)),
        model=MODEL,
        price=FREE,
        prompt_tokens=1,
    )
    free = dataclasses.replace(capped, caller=caller())
    asyncio.run(entrance.enter(capped)).leave()
    seconds[0] = 10.1
    with pytest.raises(Unavailable, match="cannot be written down"):
        asyncio.run(entrance.enter(capped))
    asyncio.run(entrance.enter(free)).leave()
    assert entrance.num_requests == 0
    seconds[0] = 0.0
    asyncio.run(entrance.enter(capped)).leave()
    asyncio.run(spending.close())
