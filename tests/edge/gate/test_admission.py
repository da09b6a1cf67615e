"""Places and allowances of an edge: which requests are let in, and what headers say of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clock import Clock

from skerry.errors import (
    AuthenticationError,
    InvalidInput,
    Overloaded,
    RateLimited,
    SkerryError,
    Unavailable,
)
from skerry_edge.gate import meters as module
from skerry_edge.gate.admission import Admission, Place
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.quotas import (
    AccountAllowance,
    Allowance,
    ModelAllowance,
    Quotas,
    TenantAllowance,
)
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.spending import dollars
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.models.catalog import Price

MODEL = "@cf/test/bytes"
ME, OTHER = "a" * 32, "b" * 32
FREE = Price()


def caller(tenant: str = ME, budgets: tuple[Budget, ...] = ()) -> Caller:
    return Caller(request_id="r", tenant=tenant, budgets=budgets, started=0.0, deadline=1.0)


def demand(
    tenant: str = ME, prompt: int = 1, output: int = 0, model: str = MODEL, choices: int = 1
) -> RequestDemand:
    return RequestDemand(
        caller=caller(tenant),
        model=model,
        price=FREE,
        prompt_tokens=prompt,
        output_tokens=output,
        choices=choices,
    )


def admission(
    quotas: Quotas | None = None,
    *,
    max_requests: int = 1024,
    clock: Callable[[], float] | None = None,
    edges: Callable[[], int] = lambda: 1,
) -> Admission:
    return Admission(max_requests=max_requests, clock=clock or Clock(), quotas=quotas, edges=edges)


def enter(entrance: Admission, *args: object, **kwargs: object) -> Place:
    wanted = demand(*args, **kwargs)  # type: ignore[arg-type]
    entrance.arrive(wanted.caller.tenant)
    entrance.arrive(wanted.caller.tenant, wanted.model)
    return asyncio.run(entrance.enter(wanted))


def every(**allowance: float) -> Quotas:
    return Quotas(every_tenant=msgspec.convert(allowance, AccountAllowance))


def told(entrance: Admission, wanted: RequestDemand) -> dict[str, str]:
    headers: dict[str, str] = {}

    async def ask() -> None:
        with contextlib.suppress(SkerryError):
            entrance.arrive(wanted.caller.tenant, tell=headers.update)
            entrance.arrive(wanted.caller.tenant, wanted.model, headers.update)
            await entrance.enter(wanted, headers.update)

    asyncio.run(ask())
    return headers


def test_without_limits_nothing_is_counted_or_told() -> None:
    entrance = admission()
    for _ in range(500):
        enter(entrance)
    assert entrance.num_requests == 500
    assert entrance.num_meters == 0
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


def test_requests_per_minute() -> None:
    clock = Clock()
    entrance = admission(every(requests_per_minute=2), clock=clock)
    enter(entrance).leave()
    enter(entrance)
    with pytest.raises(RateLimited) as refused:
        enter(entrance)
    assert refused.value.retry_after == 30.0
    assert refused.value.message == (
        "Rate limit reached: this account may ask 2 requests per minute. Try again in 30 s."
    )
    enter(entrance, OTHER)
    clock.now = 30.0
    enter(entrance)


def test_tokens_per_minute_by_the_most_that_may_be_used_then_by_what_was() -> None:
    clock = Clock()
    entrance = admission(every(tokens_per_minute=100), clock=clock)
    place = enter(entrance, prompt=10, output=80)
    with pytest.raises(RateLimited) as refused:
        enter(entrance, prompt=10, output=10)
    assert refused.value.retry_after == 6.0
    place.leave(10, 5)
    place.leave(10, 5)  # only once
    assert told(entrance, demand(prompt=10, output=65)) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "10",
        "x-ratelimit-reset-tokens": "54.000s",
    }


def test_concurrency_and_the_pace_at_which_places_become_free() -> None:
    clock = Clock()
    entrance = admission(every(concurrency=1), clock=clock)
    place = enter(entrance)
    with pytest.raises(RateLimited) as refused:
        enter(entrance)
    assert refused.value.retry_after == 1.0
    for clock.now in (5.0, 10.0):
        place.leave()
        place = enter(entrance)
    with pytest.raises(RateLimited) as refused:
        enter(entrance)
    assert refused.value.retry_after == 5.0


def test_a_tenant_of_its_own_is_not_held_to_what_every_tenant_is() -> None:
    own = TenantAllowance(account=ME, concurrency=2)
    entrance = admission(Quotas(every_tenant=AccountAllowance(concurrency=1), tenants={ME: own}))
    enter(entrance)
    enter(entrance)
    enter(entrance, OTHER)
    with pytest.raises(RateLimited):
        enter(entrance, OTHER)


def test_a_model_that_is_full_is_capacity_and_no_fault_of_the_tenant() -> None:
    of_model = ModelAllowance(model=MODEL, all_tenants=Allowance(concurrency=1))
    entrance = admission(Quotas(models={MODEL: of_model}))
    enter(entrance)
    with pytest.raises(Overloaded) as refused:
        enter(entrance, OTHER)
    assert (refused.value.http_status, refused.value.number) == (429, 3040)
    assert told(entrance, demand()) == {}
    enter(entrance, model="@cf/test/another")


def test_a_tenant_and_a_model() -> None:
    of_model = ModelAllowance(model=MODEL, every_tenant=Allowance(requests_per_minute=1))
    entrance = admission(Quotas(models={MODEL: of_model}))
    enter(entrance)
    enter(entrance, OTHER)
    with pytest.raises(RateLimited, match=f"1 requests per minute for {MODEL}") as refused:
        enter(entrance)
    assert (refused.value.http_status, refused.value.number) == (429, 2003)


def test_who_is_refused_by_one_limit_uses_up_none_of_the_others() -> None:
    of_model = ModelAllowance(model=MODEL, all_tenants=Allowance(concurrency=1))
    quotas = Quotas(every_tenant=AccountAllowance(tokens_per_minute=2), models={MODEL: of_model})
    entrance = admission(quotas)
    place = enter(entrance)
    for _ in range(5):
        with pytest.raises(Overloaded):
            enter(entrance)
    place.leave(1)
    enter(entrance)


def test_a_request_counts_when_it_arrives_whatever_becomes_of_it() -> None:
    of_model = ModelAllowance(model=MODEL, every_tenant=Allowance(requests_per_minute=3))
    quotas = Quotas(every_tenant=AccountAllowance(requests_per_minute=4), models={MODEL: of_model})
    entrance = admission(quotas)
    for model in (MODEL, MODEL, MODEL):
        entrance.arrive(ME)
        entrance.arrive(ME, model)
    entrance.arrive(ME)
    with pytest.raises(RateLimited, match="3 requests per minute for"):
        entrance.arrive(ME, MODEL)
    with pytest.raises(RateLimited, match="4 requests per minute"):
        entrance.arrive(ME)
    entrance.arrive(OTHER)


def test_the_headers_are_of_the_limit_that_is_nearest() -> None:
    of_model = ModelAllowance(model=MODEL, every_tenant=Allowance(requests_per_minute=10))
    quotas = Quotas(every_tenant=AccountAllowance(requests_per_minute=4), models={MODEL: of_model})
    entrance = admission(quotas)
    for remaining in (3, 2, 1, 0, 0):
        headers = told(entrance, demand())
        assert headers["x-ratelimit-limit-requests"] == "4"
        assert headers["x-ratelimit-remaining-requests"] == str(remaining)
    assert headers["x-ratelimit-reset-requests"] == "60.000s"


def test_each_of_several_edges_lets_its_part_in() -> None:
    edges = 3
    clock = Clock()
    entrance = admission(
        every(requests_per_minute=30, concurrency=8), clock=clock, edges=lambda: edges
    )
    for _ in range(2):
        enter(entrance)
    with pytest.raises(RateLimited, match="2 requests at once"):
        enter(entrance)
    edges = 1
    for _ in range(6):
        enter(entrance)
    with pytest.raises(RateLimited, match="8 requests at once"):
        enter(entrance)


def test_limits_that_change_hold_at_once() -> None:
    entrance = admission(every(concurrency=1))
    enter(entrance)
    entrance.hold_to(every(concurrency=2))
    enter(entrance)
    entrance.hold_to(Quotas())
    enter(entrance)
    entrance.hold_to(every(concurrency=2))
    with pytest.raises(RateLimited):
        enter(entrance)


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
    assert entrance.num_meters == 3


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
    assert (entrance.num_meters, entrance.num_requests) == (3, 1)
    with pytest.raises(RateLimited):
        enter(entrance, OTHER)


STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 40.0), st.sampled_from([ME, OTHER]), st.integers(1, 60), st.booleans()
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_no_order_of_events_lets_a_tenant_beyond_its_limits(
    steps: list[tuple[float, str, int, bool]],
) -> None:
    clock = Clock()
    entrance = admission(
        every(requests_per_minute=6, tokens_per_minute=120, concurrency=3), clock=clock
    )
    running: list[Place] = []
    let_in: list[tuple[float, str]] = []
    for pause, tenant, tokens, leaves in steps:
        clock.now += pause
        with contextlib.suppress(RateLimited):
            running.append(enter(entrance, tenant, prompt=tokens))
            let_in.append((clock.now, tenant))
        if leaves and running:
            place = running.pop(0)
            place.leave(place.demand.prompt_tokens)
        for each in (ME, OTHER):
            assert sum(place.demand.caller.tenant == each for place in running) <= 3
    assert entrance.num_requests == len(running)
    for begin, tenant in let_in:
        within = [at for at, who in let_in if who == tenant and begin <= at <= begin + 60.0]
        assert len(within) <= 12


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
