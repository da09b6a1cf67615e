"""Files of tenants."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.clock import Clock
from tests.edge.api.batch.file_servers import BOUNDS, Servers, content, num_pieces, of, put
from tests.regions.drivers.faults import Fault, FaultPlan

from skerry.errors import BodyTooLarge, QuotaExceeded, Unavailable
from skerry_edge.ledger.file_store import TRANSACTION_PIECES, FileStore
from skerry_edge.ledger.files import PIECE_BYTES, UPLOAD_SECONDS, Files


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


SOME_FAULTS = [
    "answer lost",
    pytest.param("connection cut", marks=pytest.mark.slow),
    pytest.param("leader stopped", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("nats"))
    yield servers
    servers.stop()


@pytest.fixture(params=["sqlite", "nats"])
def files(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Files]:
    if request.param == "nats":
        with request.getfixturevalue("servers").opened(clock) as store:
            yield store
        return
    kept = FileStore(tmp_path / "files.db", ttl_seconds=100.0, bounds=BOUNDS, wall_clock=clock)
    yield kept
    kept.close()


def test_a_file_comes_back(files: Files) -> None:
    data = bytes(range(256)) * 2048  # two pieces
    chunks = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    stored = files.put("t", "f", "a.jsonl", "batch", chunks)
    assert (stored.id, stored.filename, stored.purpose) == ("f", "a.jsonl", "batch")
    assert (stored.size, stored.created_at, stored.expires_at) == (len(data), 1000.0, 1100.0)
    assert files.get("t", "f") == stored
    assert content(files, "f") == data
    assert files.piece("t", stored, 0) == data[:PIECE_BYTES]


def test_a_file_keeps_its_zone(files: Files) -> None:
    put(files, "free")
    bound = files.put("t", "bound", "b.jsonl", "batch", [b"x"], residency="eu")
    assert bound.residency == "eu"
    assert [each.residency for each in files.page("t")] == ["eu", None]


def test_a_store_of_before_zones_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "files.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE files (number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL,"
            " id TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,"
            " created REAL NOT NULL, expires REAL NOT NULL, size INTEGER NOT NULL DEFAULT 0,"
            " UNIQUE (tenant, id))"
        )
        database.execute("INSERT INTO files VALUES (1, 't', 'f', 'f', 'batch', 0, 1e18, 0)")
    for _ in range(2):
        with contextlib.closing(FileStore(path)) as files:
            stored = files.get("t", "f")
            assert stored is not None
            assert stored.residency is None


def test_nobody_finds_anothers(files: Files) -> None:
    put(files, "f")
    assert files.get("u", "f") is None
    with pytest.raises(Unavailable, match="replaced or deleted"):
        files.piece("u", of(files, "f"), 0)
    assert files.page("u") == []
    assert not files.delete("u", "f")
    put(files, "f", b"mine", tenant="u")
    assert content(files, "f") == b"x"


def test_files_are_listed_in_pages(files: Files) -> None:
    for id in ("a", "b", "c"):
        put(files, id)
    files.put("t", "out", "out", "batch_output", [])
    ids = [each.id for each in files.page("t", purpose="batch")]
    assert ids == ["c", "b", "a"]
    assert [each.id for each in files.page("t", after="c", limit=1)] == ["b"]
    assert [each.id for each in files.page("t", newest_first=False, after="a", limit=1)] == ["b"]


def test_a_file_takes_the_place_of_its_predecessor(files: Files) -> None:
    put(files, "f", b"old")
    before = of(files, "f")
    put(files, "f", b"new")
    assert content(files, "f") == b"new"
    with pytest.raises(Unavailable, match="replaced or deleted"):
        files.piece("t", before, 0)  # never the new bytes behind the old ones
    assert files.piece("t", before, 1) is None
    assert len(files.page("t")) == 1


def test_files_are_deleted_and_expire(files: Files, clock: Clock) -> None:
    put(files, "a")
    put(files, "b")
    assert files.delete("t", "a")
    assert not files.delete("t", "a")
    b = of(files, "b")
    clock.now += 100.0
    assert files.get("t", "b") is None
    assert files.page("t") == []
    put(files, "c")
    if isinstance(files, FileStore):  # the servers' clock is the real one
        with pytest.raises(Unavailable, match="replaced or deleted"):
            files.piece("t", b, 0)  # its pieces went when the next file came


def test_what_tenants_send_is_bounded(files: Files) -> None:
    large = b"x" * (3 * PIECE_BYTES)
    with pytest.raises(BodyTooLarge, match="exceeds"):
        put(files, "f", large + b"x")
    assert files.get("t", "f") is None
    put(files, "a", large)
    with pytest.raises(QuotaExceeded, match="delete some"):
        put(files, "b", large)
    put(files, "b", large, tenant="u")
    for id in ("c", "d", "e"):
        put(files, id)
    with pytest.raises(QuotaExceeded, match="4 files are stored already"):
        put(files, "f")
    files.put("t", "out", "out", "batch_output", [large])  # an answer is never lost for room


def test_others_have_their_turn_while_a_file_is_written(files: Files) -> None:
    put(files, "f", b"old")

    def chunks() -> Iterator[bytes]:
        for _ in range(2 * TRANSACTION_PIECES + 1):
            yield b"x" * PIECE_BYTES
            assert content(files, "f") == b"old"  # a lock held meanwhile would never be free
            put(files, "other")
            assert [each.id for each in files.page("t")] == ["other", "f"]

    stored = files.put("t", "f", "f", "batch_output", chunks())
    assert stored.size == (2 * TRANSACTION_PIECES + 1) * PIECE_BYTES == len(content(files, "f"))


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_of_a_file_that_does_not_become_whole_nothing_remains(
    files: Files, error: type[BaseException]
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * ((TRANSACTION_PIECES + 1) * PIECE_BYTES)
        raise error

    put(files, "f", b"old")
    with pytest.raises(error):
        files.put("t", "f", "f", "batch_output", chunks())
    assert content(files, "f") == b"old"
    assert num_pieces(files) == 1


def test_a_file_that_takes_too_long_is_not_stored(files: Files, clock: Clock) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x"
        clock.now += UPLOAD_SECONDS
        put(files, "other")

    with pytest.raises(Unavailable):
        files.put("t", "f", "f", "batch", chunks())
    assert [each.id for each in files.page("t")] == ["other"]
    assert num_pieces(files) == 1


def test_room_is_for_one_of_two_files_that_come_at_once(files: Files) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * (2 * PIECE_BYTES)
        put(files, "other", b"x" * (3 * PIECE_BYTES))
        yield b"x" * PIECE_BYTES

    with pytest.raises(QuotaExceeded, match="bytes in all"):
        files.put("t", "f", "f", "batch", chunks())
    assert [each.id for each in files.page("t")] == ["other"]


# --- on NATS servers -----------------------------------------------------------------------------


def test_a_file_is_found_at_another_edge_at_once(servers: Servers, clock: Clock) -> None:
    with servers.opened(clock, "two") as one, servers.opened(clock, "two") as other:
        for number in range(4):
            put(one, f"file-{number}", b"%d" % number)
            assert content(other, f"file-{number}") == b"%d" % number
        assert [each.id for each in other.page("t")] == [f"file-{n}" for n in (3, 2, 1, 0)]
        assert other.delete("t", "file-2")
        assert one.get("t", "file-2") is None


def test_of_two_uploads_at_two_edges_one_sees_the_other(servers: Servers, clock: Clock) -> None:
    with servers.opened(clock, "room") as one, servers.opened(clock, "room") as other:
        with ThreadPoolExecutor(2) as threads:
            large = b"x" * (3 * PIECE_BYTES)
            uploads = [
                threads.submit(put, each, id, large) for each, id in ((one, "a"), (other, "b"))
            ]
        refused = [upload.exception() for upload in uploads if upload.exception()]
        assert [type(error) for error in refused] == [QuotaExceeded]
        assert len(one.page("t")) == 1
        assert num_pieces(one) == 3


@pytest.mark.parametrize("fault", SOME_FAULTS)
def test_a_file_is_whole_or_absent_whatever_fails(
    servers: Servers, clock: Clock, fault: Fault
) -> None:
    """At each request of an upload that takes another's place, and of a deletion."""
    old, new = b"o" * (PIECE_BYTES + 1), b"n" * (2 * PIECE_BYTES)

    def run(at: int) -> bool:
        plan, zone = FaultPlan(fault, at, servers.cluster), secrets.token_hex(4)
        with servers.opened(clock, zone, plan) as one, servers.opened(clock, zone) as other:
            put(other, "f", old)
            plan.is_armed = True
            try:
                put(one, "f", new)
            except Unavailable:
                assert content(other, "f") == old, "it was refused, and left nothing"
            else:
                assert content(other, "f") == new
            plan.is_armed = False
            put(one, "f", new)
            assert content(one, "f") == new
            clock.now += UPLOAD_SECONDS
            put(other, "f", new)  # which sweeps
            assert num_pieces(other) == 2
            assert len(servers.run(other.stream.keys())) == 2 + 2  # its head and the tenant's turn
        return plan.was_hit

    at = 0
    while run(at):
        at += 1
    assert at >= 10


def test_a_deletion_that_fails_left_a_file_or_none(servers: Servers, clock: Clock) -> None:
    def run(at: int) -> bool:
        plan, zone = FaultPlan("answer lost", at, servers.cluster), secrets.token_hex(4)
        with servers.opened(clock, zone, plan) as one, servers.opened(clock, zone) as other:
            put(other, "f", b"x")
            plan.is_armed = True
            try:
                assert one.delete("t", "f")
            except Unavailable:
                assert content(other, "f") == b"x"
            else:
                assert other.get("t", "f") is None
        return plan.was_hit

    at = 0
    while run(at):
        at += 1
    assert at >= 4
