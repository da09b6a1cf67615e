from __future__ import annotations

import pytest

from skerry_core.engine.fairness import MAX_DEPARTED, FairShare


def test_being_away_earns_nothing() -> None:
    fair = FairShare()
    fair.enter("busy")
    fair.charge("busy", 5.0)
    fair.enter("late")
    assert fair.service("late") == 5.0
    assert fair.is_newcomer("late")


def test_the_first_service_ends_being_new() -> None:
    fair = FairShare()
    fair.enter("a")
    fair.charge("a", 0.0)
    assert not fair.is_newcomer("a")


def test_leaving_does_not_wipe_out_what_was_used() -> None:
    fair = FairShare()
    fair.enter("steady")
    fair.enter("greedy")
    fair.charge("steady", 1.0)
    fair.charge("greedy", 9.0)
    fair.leave("greedy")
    fair.enter("greedy")
    assert fair.service("greedy") == 9.0
    assert not fair.is_newcomer("greedy")


def test_an_idle_engine_forgets() -> None:
    fair = FairShare()
    fair.enter("greedy")
    fair.charge("greedy", 9.0)
    fair.leave("greedy")
    fair.enter("greedy")
    assert fair.service("greedy") == 0.0
    assert fair.is_newcomer("greedy")


def test_a_tenant_stays_until_its_last_request_leaves() -> None:
    fair = FairShare()
    fair.enter("a")
    fair.enter("a")
    fair.charge("a", 2.0)
    fair.leave("a")
    assert fair.service("a") == 2.0
    fair.leave("a")
    with pytest.raises(KeyError):
        fair.service("a")


def test_the_memory_of_departed_tenants_is_bounded() -> None:
    fair = FairShare()
    fair.enter("steady")
    for i in range(MAX_DEPARTED + 10):
        fair.enter(f"{i}")
        fair.charge(f"{i}", 1.0)
        fair.leave(f"{i}")
    assert len(fair._departed) == MAX_DEPARTED
    assert "0" not in fair._departed
