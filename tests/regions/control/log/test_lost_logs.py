"""Stores over a log that has forgotten, was put back, lost something, or holds none."""

from __future__ import annotations

import secrets
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.clock import Clock
from tests.regions.control.log.logs import Logs
from tests.regions.control.log.picture import regions, rows
from tests.regions.control.support import new
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.control.desired.backup import backup
from skerry_regions.control.desired.logged_store import UnfitLog
from skerry_regions.control.desired.migrations import VERSION, NewerSchema
from skerry_regions.control.desired.resources import DNS_RECORD, REGION
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.transactions import (
    FORMAT,
    ChangedRow,
    Transaction,
    encoded,
)
from skerry_regions.control.errors import Busy, NotLeading, TooLarge
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.stream import Write
from skerry_regions.drivers.jetstream.tables import CONTROL


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
