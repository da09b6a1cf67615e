"""What `skerry state copy` copies: each table as it is in a home and on NATS servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skerry.errors import Unavailable
from skerry_cli.home.shared.settings import shared_settings
from skerry_cli.home.shared_state import STATE_VARIABLE
from skerry_cli.home.state import JOURNAL_NAME, Home
from skerry_edge.gate.token_file import TokenRecords
from skerry_edge.shared.copies.documents import (
    NatsDocuments,
    NatsFirstRequests,
    SqliteKeys,
    SqliteResponses,
)
from skerry_edge.shared.copies.file_tables import NatsFileTable, SqliteFiles
from skerry_edge.shared.copies.money_tables import NatsMoney, SqliteMoney
from skerry_edge.shared.copies.tables import CopiedTable, StateTable, copy_table
from skerry_edge.shared.copies.usage_copy import copy_usage, settled, shared_length
from skerry_regions.drivers.jetstream.answers import ErrorCode, JetStreamError
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.queue.nats_batches import NatsBatches
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import (
    BATCHES,
    FILES,
    IDEMPOTENCY,
    MONEY,
    RESPONSES,
    SETTINGS,
    USAGE,
)
from skerry_regions.drivers.queue_copy import SqliteBatches
from skerry_regions.zones import GLOBAL

COPIED_OF_ZONE = (RESPONSES, IDEMPOTENCY, FILES, BATCHES)  # streams that a home takes back whole
Progress = Callable[[str, int, int], None]  # table, how many of how many


@dataclass(frozen=True)
class TableEnds:
    """A table at both places."""

    name: str
    sqlite: Any
    nats: Any


class CopiedState:
    """All tables of a home and of servers. Methods are called on the connection's loop."""

    def __init__(self, home: Home, state: JetStream, zones: list[str]) -> None:
        self._home = home
        self._state = state
        self._zones = zones
        self.money = KeyedStream(state, MONEY, GLOBAL)

    async def copy(
        self, *, is_leaving: bool, life: str, replaces: bool, progress: Progress
    ) -> list[CopiedTable]:
        """Copy all to the servers, or back. Raises `Unavailable`: what is there by then stays."""
        copied = []
        for ends in self._tables(life if is_leaving else "", replaces=replaces):
            source, destination = ends.sqlite, ends.nats
            if not is_leaving:
                source, destination = destination, source

            def note(number: int, total: int, name: str = ends.name) -> None:
                progress(name, number, total)

            with closing(ends.sqlite):
                copied.append(
                    await asyncio.to_thread(copy_table, ends.name, source, destination, note)
                )
        for zone in self._zones:
            copied.append(
                await copy_usage(
                    self._journal(zone),
                    KeyedStream(self._state, USAGE, zone),
                    is_leaving=is_leaving,
                    progress=lambda number, total: progress("usage", number, total),
                )
            )
        return copied

    async def counts(self) -> list[tuple[str, int, int]]:
        """Return of each table how many records are in the home, and on the servers."""
        settings = KeyedStream(self._state, SETTINGS, GLOBAL)
        tokens = await _count(settings.count("token.*"))  # those that were revoked of late, too
        found = [("tokens", len(TokenRecords(self._home.tokens).read()), tokens)]
        for ends in self._tables("", replaces=False):
            with closing(ends.sqlite):
                here = await asyncio.to_thread(_length, ends.sqlite)
                there = await _count(asyncio.to_thread(_length, ends.nats))
            found.append((ends.name, here, there))
        for zone in self._zones:
            here = len(settled(self._journal(zone)))
            there = await _count(shared_length(KeyedStream(self._state, USAGE, zone)))
            found.append((_named("usage", zone), here, there))
        return found

    async def share_settings(self, url: str, *, is_leaving: bool) -> CopiedTable:
        """Have tokens, limits, catalog and key root be the same at both places: see
        `home.shared`. Raises `Unavailable` or `CannotStart`."""
        here, there = await asyncio.to_thread(_shared_tokens, self._home, url)
        source, destination = (here, there) if is_leaving else (there, here)
        return CopiedTable("tokens", len(source), len(source), len(source - destination))

    async def empty_servers(self) -> None:
        """Delete what a home took back whole, before it is copied there once more."""
        await KeyedStream(self._state, SETTINGS, GLOBAL).delete(">")
        for zone in self._zones:
            for spec in COPIED_OF_ZONE:
                await KeyedStream(self._state, spec, zone).delete(">")

    def empty_home(self) -> None:
        """Delete the home's files of what the servers have."""
        for path in self._files():
            for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                path.with_name(name).unlink(missing_ok=True)

    def home_has_records(self) -> bool:
        """Return whether the home has something of its own that a copy would mix with."""
        ends = self._tables("", replaces=False)
        found = False
        for each in ends:
            with closing(each.sqlite):
                found = found or bool(each.sqlite.keys())
        return found

    def journals(self) -> list[Path]:
        return [self._journal(zone) for zone in self._zones]

    def _journal(self, zone: str) -> Path:
        return self._home.in_zone(zone).stores / JOURNAL_NAME

    def _files(self) -> Iterator[Path]:
        yield self._home.spending
        for zone in self._zones:
            home = self._home.in_zone(zone)
            yield from (home.responses, home.idempotency, home.files, home.queue)

    def _tables(self, life: str, *, replaces: bool) -> Iterator[TableEnds]:
        """Yield money first: what it was spent for follows."""
        loop = asyncio.get_running_loop()
        yield TableEnds(
            "money",
            SqliteMoney(self._home.spending),
            NatsMoney(self.money, loop, life, replaces=replaces),
        )
        for zone in self._zones:
            home = self._home.in_zone(zone)
            responses, keys, files, batches = (
                KeyedStream(self._state, spec, zone) for spec in COPIED_OF_ZONE
            )
            yield TableEnds(
                _named("responses", zone),
                SqliteResponses(home.responses),
                NatsDocuments(responses, loop),
            )
            yield TableEnds(
                _named("keys", zone), SqliteKeys(home.idempotency), NatsFirstRequests(keys, loop)
            )
            yield TableEnds(
                _named("files", zone), SqliteFiles(home.files), NatsFileTable(files, loop)
            )
            yield TableEnds(
                _named("batches", zone), SqliteBatches(home.queue), NatsBatches(batches, loop)
            )


def zones_of(home: Home) -> list[str]:
    """Return the residency zones that a home has stores of."""
    folder = home.root / "zones"
    found = [each.name for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []
    return [GLOBAL, *sorted(found)]


async def zones_on(state: JetStream) -> list[str]:
    """Return the residency zones that servers have streams of. Raises `Unavailable`."""
    found: list[str] = []
    while True:
        try:
            answer = await state.call("STREAM.NAMES", {"offset": len(found)})
        except JetStreamError as error:
            raise Unavailable(f"NATS lists no streams: {error}.") from error
        some = answer.get("streams") or []
        found += some
        if not some or len(found) >= answer["total"]:
            break
    prefix = RESPONSES.name("")
    zones = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
    return [GLOBAL, *sorted(zones - {GLOBAL})]


def _shared_tokens(home: Home, url: str) -> tuple[set[str], set[str]]:
    """Return the ids of a home's tokens and of the servers', after they were shared."""
    with shared_settings(home, {STATE_VARIABLE: url}, "skerry state copy", serves=True) as settings:
        if settings is None or not settings.wait(0.0):
            raise Unavailable("NATS does not answer in time.")
        there = {each.id for each in settings.current().token_file.tokens}
        return {*TokenRecords(home.tokens).read()}, there


def _named(table: str, zone: str) -> str:
    return table if zone == GLOBAL else f"{table} ({zone})"


def _length(table: StateTable[Any]) -> int:
    return len(table.keys())


async def _count(counting: Awaitable[int]) -> int:
    """Return a number of records: 0 of a stream that is not there yet."""
    try:
        return await counting
    except Unavailable as error:
        cause = error.__cause__
        if isinstance(cause, JetStreamError) and cause.code == ErrorCode.NO_STREAM:
            return 0
        raise
