"""One suite for every registry driver: leases, incarnations, and many writers."""

from __future__ import annotations

import asyncio
import functools
import secrets
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import nats as nats_client
import pytest
from tests.clock import Clock
from tests.regions.control.joining import platform
from tests.regions.drivers.conftest import member

from skerry_regions.control.machines.https_registry import HttpsRegistry
from skerry_regions.drivers.nats_registry import NatsRegistry
from skerry_regions.drivers.sqlite_file import open_database
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.registry import Registry, RegistryUnavailable


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@dataclass(frozen=True)
class Driver:
    """A registry, and a way to damage what it stored of a member."""

    registry: Registry
    damage: Callable[[str], None]


@pytest.fixture(params=["sqlite", "nats", "https"])
def driver(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Driver]:
    made: Driver
    if request.param == "sqlite":
        path = tmp_path / "registry.db"
        made = Driver(SqliteRegistry(path, clock=clock), functools.partial(damage_row, path))
    elif request.param == "https":
        path = tmp_path / "registry.db"
        kept = SqliteRegistry(path, clock=clock)
        with platform(tmp_path, registry=kept, admit=lambda _, member: member) as control:
            registry = HttpsRegistry(control.joined("machine"))
            yield Driver(registry, functools.partial(damage_row, path))
            registry.close()
        return
    else:
        url, bucket = request.getfixturevalue("nats").url, secrets.token_hex(8)
        registry = NatsRegistry(url, bucket=bucket, clock=clock)
        made = Driver(registry, lambda id_: asyncio.run(damage_key(url, bucket, id_)))
    yield made
    made.registry.close()


@pytest.fixture
def registry(driver: Driver) -> Registry:
    return driver.registry


def damage_row(path: Path, id_: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE members SET member = x'80' WHERE id = ?", (id_,))


async def damage_key(url: str, bucket: str, id_: str) -> None:
    client = await nats_client.connect(url)
    await (await client.jetstream().key_value(bucket)).put(id_.encode().hex(), b"\x80")
    await client.close()


def test_members_are_told_as_they_were_announced(registry: Registry) -> None:
    registry.announce(member("b", streams=3))
    registry.announce(member("a"))
    assert registry.members() == [member("a"), member("b", streams=3)]


def test_a_lease_lapses_and_renewing_keeps_it(registry: Registry, clock: Clock) -> None:
    registry.announce(member("a"), 3.0)
    registry.announce(member("b"), 3.0)
    clock.now += 2.9
    registry.announce(member("b"), 3.0)
    clock.now += 0.1
    assert registry.members() == [member("b")]
    clock.now += 2.9
    assert registry.members() == []


def test_an_older_incarnation_never_replaces_a_newer_one(registry: Registry) -> None:
    assert registry.announce(member("a", incarnation=2)) == 2
    assert registry.announce(member("a", incarnation=1, streams=9)) == 2
    assert registry.members() == [member("a", incarnation=2)]
    registry.withdraw("a", 1)
    assert registry.members() == [member("a", incarnation=2)]
    registry.withdraw("a", 2)
    assert registry.members() == []


def test_an_id_may_have_any_characters(registry: Registry) -> None:
    odd = member("a b/*.>é")
    registry.announce(odd)
    assert registry.members() == [odd]
    registry.withdraw(odd.id, 1)
    assert registry.members() == []


def test_withdrawing_whom_nobody_knows_changes_nothing(registry: Registry) -> None:
    registry.withdraw("nobody", 1)
    assert registry.members() == []


def test_a_record_that_cannot_be_read_is_left_out_and_told_once(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    registry = driver.registry
    for id_ in ("a", "b", "c"):
        registry.announce(member(id_))
    driver.damage("b")
    assert registry.members() == registry.members() == [member("a"), member("c")]
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "the record of 'b' cannot be read" in record.getMessage()
    registry.announce(member("c", streams=1))
    registry.announce(member("b", incarnation=2))
    assert registry.members() == [
        member("a"), member("b", incarnation=2), member("c", streams=1),
    ]  # fmt: skip


def test_a_record_that_cannot_be_read_can_be_withdrawn(driver: Driver) -> None:
    driver.registry.announce(member("a"))
    driver.damage("a")
    driver.registry.withdraw("a", 1)
    driver.registry.announce(member("a"))
    assert driver.registry.members() == [member("a")]


def test_records_of_an_earlier_boot_are_void(tmp_path: Path, clock: Clock) -> None:
    earlier = SqliteRegistry(tmp_path / "r.db", clock=clock, boot="one")
    earlier.announce(member("a", incarnation=7), 1e9)
    earlier.close()
    later = SqliteRegistry(tmp_path / "r.db", clock=clock, boot="two")
    assert later.members() == []
    later.announce(member("a", incarnation=1))
    assert later.members() == [member("a", incarnation=1)]
    later.close()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(RegistryUnavailable, match=r"registry\.db: file is not a database"):
        SqliteRegistry(path).members()


WRITER = """
import sys
from pathlib import Path
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.registry import Member
registry = SqliteRegistry(Path(sys.argv[1]))
for turn in range(100):
    registry.announce(Member(id=sys.argv[2], kind="node", region="r", streams=turn), 600.0)
"""


def test_processes_write_side_by_side(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    path = tmp_path / "registry.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, f"node-{number}"], env=subprocess_env) for number in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    registry = SqliteRegistry(path)
    assert [(m.id, m.streams) for m in registry.members()] == [
        (f"node-{number}", 99) for number in range(4)
    ]
    registry.close()


def test_a_file_that_another_process_makes_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself gives up at once there, whatever time-out the connection has."""
    path = tmp_path / "registry.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_database(path, (), is_durable=False, busy_seconds=0.1)
    timer = threading.Timer(0.1, other.execute, ("ROLLBACK",))
    timer.start()
    registry = SqliteRegistry(path)
    assert registry.members() == []
    registry.close()
    timer.join()
    other.close()
