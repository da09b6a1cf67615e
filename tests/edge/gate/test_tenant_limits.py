"""Allowances of tenants: requests, tokens and places, and what headers say of them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clock import Clock
from tests.edge.gate.demands import ME, MODEL, OTHER, admission, demand, enter, every, told

from skerry.errors import Overloaded, RateLimited
from skerry_edge.gate.admission import Place
from skerry_edge.gate.quotas import (
    AccountAllowance,
    Allowance,
    ModelAllowance,
    Quotas,
    TenantAllowance,
)


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
