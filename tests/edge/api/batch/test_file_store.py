"""Files of tenants."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.errors import BodyTooLarge, QuotaExceeded, Unavailable
from skerry_edge.ledger.file_store import TRANSACTION_PIECES, FileStore
from skerry_edge.ledger.files import PIECE_BYTES, UPLOAD_SECONDS, FileBounds, StoredFile


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> Iterator[FileStore]:
    store = FileStore(
        tmp_path / "files.db",
        ttl_seconds=100.0,
        bounds=FileBounds(file_bytes=3 * PIECE_BYTES, tenant_bytes=5 * PIECE_BYTES, tenant_files=4),
        wall_clock=clock,
    )
    yield store
    store.close()


def put(files: FileStore, id: str, content: bytes = b"x", *, tenant: str = "t") -> None:
    files.put(tenant, id, f"{id}.jsonl", "batch", [content])


def of(files: FileStore, id: str) -> StoredFile:
    file = files.get("t", id)
    assert file is not None
    return file


def content(files: FileStore, id: str, *, tenant: str = "t") -> bytes:
    pieces: list[bytes] = []
    file = files.get(tenant, id)
    assert file is not None
    while (piece := files.piece(tenant, file, len(pieces))) is not None:
        pieces.append(piece)
    return b"".join(pieces)


def test_a_file_comes_back(files: FileStore) -> None:
    data = bytes(range(256)) * 2048  # two pieces
    chunks = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    stored = files.put("t", "f", "a.jsonl", "batch", chunks)
    assert (stored.id, stored.filename, stored.purpose) == ("f", "a.jsonl", "batch")
    assert (stored.size, stored.created_at, stored.expires_at) == (len(data), 1000.0, 1100.0)
    assert files.get("t", "f") == stored
    assert content(files, "f") == data
    assert files.piece("t", stored, 0) == data[:PIECE_BYTES]


def test_a_file_keeps_its_zone(files: FileStore) -> None:
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


def test_nobody_finds_anothers(files: FileStore) -> None:
    put(files, "f")
    assert files.get("u", "f") is None
    with pytest.raises(Unavailable, match="replaced or deleted"):
        files.piece("u", of(files, "f"), 0)
    assert files.page("u") == []
    assert not files.delete("u", "f")
    put(files, "f", b"mine", tenant="u")
    assert content(files, "f") == b"x"


def test_files_are_listed_in_pages(files: FileStore) -> None:
    for id in ("a", "b", "c"):
        put(files, id)
    files.put("t", "out", "out", "batch_output", [])
    ids = [each.id for each in files.page("t", purpose="batch")]
    assert ids == ["c", "b", "a"]
    assert [each.id for each in files.page("t", after="c", limit=1)] == ["b"]
    assert [each.id for each in files.page("t", newest_first=False, after="a", limit=1)] == ["b"]


def test_a_file_takes_the_place_of_its_predecessor(files: FileStore) -> None:
    put(files, "f", b"old")
    before = of(files, "f")
    put(files, "f", b"new")
    assert content(files, "f") == b"new"
    with pytest.raises(Unavailable, match="replaced or deleted"):
        files.piece("t", before, 0)  # never the new bytes behind the old ones
    assert files.piece("t", before, 1) is None
    assert len(files.page("t")) == 1


def test_files_are_deleted_and_expire(files: FileStore, clock: Clock) -> None:
    put(files, "a")
    put(files, "b")
    assert files.delete("t", "a")
    assert not files.delete("t", "a")
    b = of(files, "b")
    clock.now += 100.0
    assert files.get("t", "b") is None
    assert files.page("t") == []
    put(files, "c")
    with pytest.raises(Unavailable, match="replaced or deleted"):
        files.piece("t", b, 0)  # its pieces went when the next file came


def test_what_tenants_send_is_bounded(files: FileStore) -> None:
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


def test_others_have_their_turn_while_a_file_is_written(files: FileStore) -> None:
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
    tmp_path: Path, files: FileStore, error: type[BaseException]
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * ((TRANSACTION_PIECES + 1) * PIECE_BYTES)
        raise error

    put(files, "f", b"old")
    with pytest.raises(error):
        files.put("t", "f", "f", "batch_output", chunks())
    assert content(files, "f") == b"old"
    with contextlib.closing(sqlite3.connect(tmp_path / "files.db")) as database:
        assert database.execute("SELECT COUNT(*) FROM pieces").fetchone() == (1,)


def test_a_file_that_takes_too_long_is_not_stored(files: FileStore, clock: Clock) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x"
        clock.now += UPLOAD_SECONDS
        put(files, "other")

    with pytest.raises(Unavailable):
        files.put("t", "f", "f", "batch", chunks())
    assert [each.id for each in files.page("t")] == ["other"]


def test_room_is_for_one_of_two_files_that_come_at_once(files: FileStore) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * (2 * PIECE_BYTES)
        put(files, "other", b"x" * (3 * PIECE_BYTES))
        yield b"x" * PIECE_BYTES

    with pytest.raises(QuotaExceeded, match="bytes in all"):
        files.put("t", "f", "f", "batch", chunks())
    assert [each.id for each in files.page("t")] == ["other"]
