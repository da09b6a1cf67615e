"""Stored responses: bounded in time and bytes, and nobody else's."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import msgspec
import pytest

from skerry.errors import Unavailable
from skerry.wire import Message, TextPart
from skerry_edge.ledger.responses_store import ResponseStore, StoredResponse

A, B = "a" * 32, "b" * 32


def stored(text: str = "hi") -> StoredResponse:
    turns = [Message("user", [TextPart("x")]), Message("assistant", text)]
    return StoredResponse(msgspec.Raw(b'{"id":"r"}'), turns)


def test_a_response_is_found_by_its_tenant_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = ResponseStore(tmp_path / "r.db")
        assert await store.put(A, "r", stored())
        found = await store.get(A, "r")
        assert found == stored()
        assert await store.get(B, "r") is None
        assert not await store.delete(B, "r")
        store.close()
        other = ResponseStore(tmp_path / "r.db")  # another edge of the home, or a later one
        assert await other.get(A, "r") == found
        assert await other.delete(A, "r")
        assert await other.get(A, "r") is None
        assert not await other.delete(A, "r")
        other.close()

    asyncio.run(run())
    assert (tmp_path / "r.db").stat().st_mode & 0o777 == 0o600


def test_a_response_expires(tmp_path: Path) -> None:
    async def run() -> None:
        now = 1000.0
        store = ResponseStore(tmp_path / "r.db", ttl_seconds=60, clock=lambda: now)
        await store.put(A, "old", stored())
        now = 1059.0
        assert await store.get(A, "old")
        now = 1060.0
        assert await store.get(A, "old") is None
        await store.put(A, "new", stored())
        store.close()

    asyncio.run(run())
    with sqlite3.connect(tmp_path / "r.db") as database:
        assert database.execute("SELECT id FROM responses").fetchall() == [("new",)]
    database.close()


def test_the_oldest_go_first(tmp_path: Path) -> None:
    async def run() -> None:
        size = len(msgspec.json.encode(stored()))
        store = ResponseStore(tmp_path / "r.db", max_tenant_bytes=2 * size, max_bytes=3 * size)
        for number in range(3):
            await store.put(A, str(number), stored())
        assert [bool(await store.get(A, str(n))) for n in range(3)] == [False, True, True]
        for number in range(2):
            await store.put(B, str(number), stored())
        assert [bool(await store.get(A, str(n))) for n in range(3)] == [False, False, True]
        assert [bool(await store.get(B, str(n))) for n in range(2)] == [True, True]
        assert not await store.put(A, "huge", stored("x" * 2 * size))
        store.close()

    asyncio.run(run())


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "r.db").write_bytes(b"not a database, and long enough to be told apart" * 20)
        store = ResponseStore(tmp_path / "r.db")
        with pytest.raises(Unavailable, match=r"r\.db cannot be used"):
            await store.get(A, "r")
        store.close()

    asyncio.run(run())
