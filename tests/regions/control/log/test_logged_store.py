"""Several stores over one log: what one writes all have, once, and only whoever leads writes."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.clock import Clock
from tests.regions.control.log.logs import Logs
from tests.regions.control.support import Tokens, new
from tests.regions.drivers.faults import Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.control.desired.backup import backup
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.logged_store import UnfitLog
from skerry_regions.control.desired.migrations import VERSION, NewerSchema
from skerry_regions.control.desired.resources import API_TOKEN, DNS_RECORD, POOL, REGION
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.transactions import (
    FORMAT,
    TABLES,
    ChangedRow,
    Transaction,
    encoded,
)
from skerry_regions.control.errors import Busy, NotLeading, TooLarge
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.stream import Write
from skerry_regions.drivers.jetstream.tables import CONTROL

SOME_FAULTS = [  # and at every how many-th request
    ("answer lost", 3),
    pytest.param("answer lost", 1, marks=pytest.mark.slow),
    pytest.param("connection cut", 1, marks=pytest.mark.slow),
    pytest.param("leader stopped", 1, marks=pytest.mark.slow),
]


def rows(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """All that control planes share."""
    return {table: store.select(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}


def regions(store: Store) -> list[str]:
    return sorted(store.desired.regions())


def again(call: Callable[[], None]) -> None:
    """As whoever reads: until the servers can be used."""
    while True:
        with contextlib.suppress(Busy):
            return call()


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


def test_a_log_that_has_forgotten_its_beginning_is_followed(logs: Logs, tmp_path: Path) -> None:
    spec = replace(CONTROL, max_bytes=32 * MIB, max_messages=4)
    clock = Clock(1_700_000_000.0)
    leader = logs.open(tmp_path / "a" / "control.db", clock, picture_every=3)
    leader.next_term(0)
    behind = logs.open(tmp_path / "b" / "control.db", clock)
    config = spec.config(logs.zone, 1)
    made = logs.connection()
    logs.wait(made.call(f"STREAM.UPDATE.{config['name']}", config))
    for number in range(9):
        new(leader, "regions", name=f"r{number}", iata="FRA")
        leader.keep_picture()
    late = logs.open(tmp_path / "c" / "control.db", clock)
    behind.read_on()
    assert rows(late) == rows(behind) == rows(leader)
    for store in (leader, behind, late):
        store.close()


def test_what_a_file_had_before_there_was_a_log_is_its_beginning(
    logs: Logs, tmp_path: Path
) -> None:
    clock = Clock(1_700_000_000.0)
    path = tmp_path / "a" / "control.db"
    alone = Store(path, clock=clock)
    new(alone, "regions", name="fra", iata="FRA")
    assert alone.next_term(4) == 5
    before = rows(alone)
    alone.close()
    leader = logs.open(path, clock)
    assert rows(leader) == before
    assert leader.next_term(0) == 6
    follower = logs.open(tmp_path / "b" / "control.db", clock)
    assert rows(follower) == rows(leader)
    assert rows(follower)["audit"] == before["audit"]
    follower.close()
    leader.close()
    own = Store(tmp_path / "c" / "control.db", clock=clock)
    new(own, "regions", name="gru", iata="GRU")
    own.close()
    with pytest.raises(UnfitLog, match="another desired state than the log"):
        logs.open(tmp_path / "c" / "control.db", clock)


def test_a_copy_that_is_put_back_is_what_all_want(logs: Logs, tmp_path: Path) -> None:
    clock = Clock(1_700_000_000.0)
    leader = logs.lead(tmp_path / "a" / "control.db", clock)
    new(leader, "regions", name="fra", iata="FRA")
    backup(tmp_path / "a" / "control.db", tmp_path / "copy.db")
    follower = logs.open(tmp_path / "b" / "control.db", clock)
    new(leader, "regions", name="iad", iata="IAD")
    follower.next_term(0)
    follower.replace(tmp_path / "copy.db")
    leader.read_on()
    assert regions(leader) == regions(follower) == ["fra"]
    assert rows(leader) == rows(follower)
    assert (leader.term, follower.term) == (0, 2), "terms do not go back"
    assert leader.next_term(0) == 3
    leader.close()
    follower.close()


def test_a_log_that_lost_something_is_not_gone_on_with(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path / "nats", size=1)
    logs = Logs(cluster)
    try:
        leader = logs.lead(tmp_path / "control.db", Clock(1_700_000_000.0))
        new(leader, "regions", name="fra", iata="FRA")
        leader.check_log()
        cluster.kill("n1")
        cluster.forget("n1")
        cluster.start("n1")
        logs.log()  # makes the stream again
        with pytest.raises(UnfitLog, match="knows 2 transactions, the log 0"):
            leader.check_log()
        with pytest.raises(Busy):
            new(leader, "regions", name="iad", iata="IAD")
        assert regions(leader) == ["fra"]
        leader.close()
        with pytest.raises(UnfitLog, match="has lost what it had acknowledged"):
            logs.open(tmp_path / "control.db", Clock(1_700_000_000.0))
        backup(tmp_path / "control.db", tmp_path / "copy.db")
        other = logs.lead(tmp_path / "other" / "control.db", Clock(1_700_000_000.0))
        other.replace(tmp_path / "copy.db")
        again = logs.open(tmp_path / "control.db", Clock(1_700_000_000.0))
        assert rows(again) == rows(other)
        assert regions(again) == ["fra"]
        assert len([*tmp_path.glob("control.db.????????")]) == 1, "a copy of the former file"
        again.close()
        other.close()
    finally:
        logs.close()
        cluster.stop()


def test_rows_of_other_versions(logs: Logs, tmp_path: Path) -> None:
    store = logs.lead(tmp_path / "control.db", Clock(1_700_000_000.0))
    old = {
        "id": "m1", "kind": "node", "pool": "p", "region": "fra", "hostname": "h", "version": "0",
        "token": "t", "key_digest": "d", "joined_at": 1.0, "not_after": 2.0, "revoked_at": None,
    }  # fmt: skip
    gone = ChangedRow("terraform_states", ["prod"], {"name": "prod"})
    earlier = Transaction(FORMAT, 2, 1, [ChangedRow("machines", ["m1"], {**old}), gone])
    log = logs.log()
    log.append(encoded(earlier), store.sequence)
    store.read_on()
    assert store.select("SELECT id, model FROM machines") == [("m1", "")]
    later = Transaction(FORMAT, VERSION + 1, 1, [])
    log.append(encoded(later), store.sequence)
    with pytest.raises(NewerSchema, match="update this one"):
        store.read_on()
    store.close()


@pytest.mark.parametrize(
    "data", [b"", b"no message", zlib.compress(b"\xc1"), zlib.compress(msgspec.msgpack.encode([1]))]
)
def test_what_is_no_transaction_ends_the_following(logs: Logs, tmp_path: Path, data: bytes) -> None:
    store = logs.lead(tmp_path / "control.db", Clock(1_700_000_000.0))
    log = logs.log()
    sequence = logs.wait(log._transactions.write(Write("tx", data, store.sequence)))
    with pytest.raises(UnfitLog, match=f"message {sequence}"):
        store.read_on()
    assert store.sequence == sequence - 1
    store.close()


def test_a_change_larger_than_a_message_is_refused(logs: Logs, tmp_path: Path) -> None:
    store = logs.lead(tmp_path / "control.db", Clock(1_700_000_000.0))
    with pytest.raises(TooLarge, match="several parts"), store.writing() as writing:
        writing.decide(DNS_RECORD, "x", "y", secrets.token_hex(1_500_000))
    assert store.decisions("y") == {}
    new(store, "regions", name="fra", iata="FRA")
    store.close()


def test_a_lead_that_is_lost_while_a_write_waits_is_lost_for_it(logs: Logs, tmp_path: Path) -> None:
    """What it has read of its successor by then is nothing to append behind."""
    clock = Clock(1_700_000_000.0)
    former = logs.lead(tmp_path / "a" / "control.db", clock)
    successor = logs.lead(tmp_path / "b" / "control.db", clock)

    def write() -> None:
        with former.writing() as writing:
            former.resign()  # as reading on does, on another thread
            writing.decide(REGION, "fra", "late", 1)

    with pytest.raises(NotLeading):
        write()
    assert former.decisions("late") == {}
    assert logs.log().state().last_sequence == 2
    former.close()
    successor.close()


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
