"""Several stores over one log: what one writes all have, once, and only whoever leads writes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.clock import Clock
from tests.regions.control.log.logs import Logs
from tests.regions.control.log.picture import again, regions, rows
from tests.regions.control.support import Tokens, new
from tests.regions.drivers.faults import Fault, FaultPlan

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import API_TOKEN, POOL, REGION
from skerry_regions.control.desired.transactions import (
    TABLES,
)
from skerry_regions.control.errors import NotLeading
from skerry_regions.control.machines.join_tokens import JoinTokens

SOME_FAULTS = [  # and at every how many-th request
    ("answer lost", 3),
    pytest.param("answer lost", 1, marks=pytest.mark.slow),
    pytest.param("connection cut", 1, marks=pytest.mark.slow),
    pytest.param("leader stopped", 1, marks=pytest.mark.slow),
]


def test_what_one_writes_all_have(logs: Logs, tmp_path: Path) -> None:
    clock = Clock(1_700_000_000.0)
    leader = logs.lead(tmp_path / "a" / "control.db", clock)
    follower = logs.open(tmp_path / "b" / "control.db", clock)
    changes = Changes(leader, Tokens(), b"s" * 32)
    for name in ("fra", "iad", "nrt"):
        new(leader, "regions", name=name, iata="FRA")
    new(leader, "pools", name="decode", region="fra", role="decode")
    changes.update(POOL, "fra-decode", {"replicas": 3}, actor="test", if_match=None)
    changes.create(API_TOKEN, {"name": "ci", "role": "viewer"}, actor="me", idempotency_key="k")
    changes.settle_tokens()
    JoinTokens(leader, b"s" * 32, "f" * 64).create(
        {"pool": "fra-decode"}, actor="test", idempotency_key=None
    )
    with leader.writing() as writing:
        writing.decide(REGION, "fra", "because", [1, "two"])
        writing.event(REGION, "fra", "normal", "Seen", "it was seen")
    with leader.writing() as writing:
        writing.mark_deleting(writing.desired.records["region", "iad"])
        writing.remove(REGION, "iad")
    follower.read_on()
    assert follower.desired.records == leader.desired.records
    assert follower.desired.revision == leader.desired.revision
    assert regions(follower) == ["fra", "nrt"]
    assert follower.desired.pools()["fra-decode"].replicas == 3
    assert rows(follower) == rows(leader)
    assert all(rows(leader)[table] for table in TABLES if table not in ("machines", "platform"))
    later = logs.open(tmp_path / "c" / "control.db", clock)
    assert rows(later) == rows(leader)
    for store in (leader, follower, later):
        store.close()


def test_a_write_that_fails_is_in_no_store_and_not_in_the_log(logs: Logs, tmp_path: Path) -> None:
    leader = logs.lead(tmp_path / "control.db", Clock(1_700_000_000.0))
    new(leader, "regions", name="fra", iata="FRA")
    before, sequence = rows(leader), leader.sequence
    with pytest.raises(ZeroDivisionError), leader.writing() as writing:
        assert writing.mark_deleting(leader.desired.records["region", "fra"]) / 0
    with leader.writing():
        pass  # and of nothing there is no message
    assert (rows(leader), leader.sequence) == (before, sequence)
    assert logs.log().state().last_sequence == sequence
    new(leader, "regions", name="iad", iata="IAD")
    assert leader.sequence == sequence + 1
    leader.close()


def test_whoever_was_replaced_writes_nothing(logs: Logs, tmp_path: Path) -> None:
    clock = Clock(1_700_000_000.0)
    former = logs.lead(tmp_path / "a" / "control.db", clock)
    new(former, "regions", name="fra", iata="FRA")
    successor = logs.open(tmp_path / "b" / "control.db", clock)
    with pytest.raises(NotLeading):
        new(successor, "regions", name="iad", iata="IAD")
    term = successor.next_term(0)
    assert (former.term, term) == (1, 2), "the former does not know yet"
    with pytest.raises(NotLeading):
        new(former, "regions", name="gru", iata="GRU")
    assert (former.term, regions(former)) == (0, ["fra"])
    new(successor, "regions", name="iad", iata="IAD")
    former.read_on()
    with pytest.raises(NotLeading):
        new(former, "regions", name="gru", iata="GRU")
    assert rows(former) == rows(successor)
    assert former.next_term(7) == 8, "above what was launched with"
    new(former, "regions", name="gru", iata="GRU")
    successor.read_on()
    assert successor.term == 0
    assert regions(successor) == ["fra", "gru", "iad"]
    former.close()
    successor.close()


@pytest.mark.parametrize(("fault", "step"), SOME_FAULTS)
def test_each_change_is_made_once_whatever_fails(
    logs: Logs, tmp_path: Path, fault: Fault, step: int
) -> None:
    for at in itertools.count(0, step):
        plan = FaultPlan(fault, at, logs.cluster)
        folder = tmp_path / str(at)
        own = Logs(logs.cluster)
        leader = own.open(folder / "a" / "control.db", Clock(1_700_000_000.0), plan=plan)
        leader.next_term(0)
        plan.is_armed = True
        changes = Changes(leader, Tokens(), b"s" * 32)
        for number in range(6):
            changes.create(
                REGION, {"name": f"r{number}", "iata": "FRA"}, actor="me", idempotency_key=None
            )
        again(leader.read_on)
        plan.is_armed = False
        follower = own.open(folder / "b" / "control.db", Clock(1_700_000_000.0))
        assert regions(follower) == [f"r{number}" for number in range(6)]
        assert follower.desired.revision == 6
        assert (follower.sequence, leader.sequence) == (7, 7), "and the one that began the term"
        assert rows(follower) == rows(leader)
        leader.close()
        follower.close()
        own.close()
        if not plan.was_hit:
            return


def test_new_stores_begin_with_a_picture(logs: Logs, tmp_path: Path) -> None:
    clock = Clock(1_700_000_000.0)
    leader = logs.open(tmp_path / "a" / "control.db", clock, picture_every=5)
    leader.next_term(0)
    assert not leader.keep_picture()
    for number in range(14):
        new(leader, "regions", name=f"r{number}", iata="FRA")
        assert leader.keep_picture() == (leader.sequence % 5 == 0)
    log = logs.log()
    assert log.pictures() == [10, 15], "the two newest"
    late = logs.open(tmp_path / "b" / "control.db", clock)
    assert rows(late) == rows(leader)
    assert late.sequence == 15
    late.close()
    leader.close()


def test_a_successor_knows_which_tokens_edges_know(logs: Logs, tmp_path: Path) -> None:
    clock, edges = Clock(1_700_000_000.0), Tokens()
    leader = logs.lead(tmp_path / "a" / "control.db", clock)
    follower = logs.open(tmp_path / "b" / "control.db", clock)
    changes = Changes(leader, edges, b"s" * 32)
    ids = [
        changes.create(API_TOKEN, {"name": name}, actor="me", idempotency_key=None).record.id
        for name in ("first", "second", "third")
    ]
    changes.settle_tokens()
    assert sorted(edges.published) == sorted(ids)
    edges.withdraw(ids[2])  # as `skerry tokens revoke` at any home
    follower.next_term(0)
    successor = Changes(follower, edges, b"s" * 32)
    successor.settle_tokens()
    assert follower.desired.get(API_TOKEN, ids[2]) is None, "it is not brought back"
    former = edges.published[ids[0]]
    successor.rotate(ids[0], actor="me", if_match=None, grace_seconds=60)
    assert edges.published[ids[0]] != former
    successor.delete(API_TOKEN, ids[1], actor="me", if_match=None)
    assert [*edges.published] == [ids[0]]
    leader.read_on()
    assert rows(leader) == rows(follower)
    leader.close()
    follower.close()
