"""What a home or NATS servers have, as their stores' contracts show it: for comparing the two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace
from tests.edge.ledger.journal_rows import flush
from tests.regions.drivers.nats_server import NatsCluster
from tests.regions.drivers.queues import batch

from skerry_cli.home.parts import open_batches, open_responses
from skerry_cli.home.state import JOURNAL_NAME, Home
from skerry_edge.ledger.files import Files
from skerry_edge.ledger.idempotency import IdempotencyKey, IdempotencyKeys, RequestKeys
from skerry_edge.ledger.responses_store import Responses, StoredResponse
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_report import reading, totals
from skerry_edge.ledger.usage_tables import Amount
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.nats_spending import NatsSpending
from skerry_edge.money.spending import Spending
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_edge.shared.nats_keys import NatsKeys
from skerry_edge.shared.nats_usage import NatsUsage
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import IDEMPOTENCY, MONEY, USAGE, declared
from skerry_regions.models.catalog import Price
from skerry_regions.queue import NewItem, Queue
from skerry_regions.zones import GLOBAL

TENANTS = ("0" * 32, "a tenant with *.> in its name")
PAYERS = ("token-1", "account of 2")
LARGE = bytes(range(256)) * 2600  # of three pieces
PRICE = Price(prompt=1.0, cached=0.25, output=4.0)
KILLED = """
import os, signal, sys
from skerry_cli import main
from skerry_edge.shared.copies.documents import NatsDocuments
from skerry_edge.shared.copies.file_tables import CopiedFile
from skerry_regions.drivers.jetstream.queue.nats_batches import NatsBatches

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def second(call):
    times = []
    def called(*args):
        times.append(1)
        return die() if len(times) == 2 else call(*args)
    return called

match sys.argv[1]:
    case "responses":
        NatsDocuments.write = second(NatsDocuments.write)
    case "files":
        CopiedFile.pieces = lambda self: map(second(bytes), [b"piece" * 90000] * 3)
    case "batches":
        NatsBatches._enter = die
sys.exit(main(sys.argv[2:]))
"""


@dataclass
class Place:
    """The stores of one place."""

    spending: Spending
    responses: Responses
    keys: RequestKeys
    files: Files
    queue: Queue


@asynccontextmanager
async def in_home(home: Home) -> AsyncGenerator[Place]:
    batches = open_batches(home, None)
    place = Place(
        SqliteSpending(home.spending),
        open_responses(home, None),
        IdempotencyKeys(home.idempotency),
        batches.files,
        batches.queue,
    )
    try:
        yield place
    finally:
        await place.spending.close()
        for each in (place.responses, place.keys, place.files, place.queue):
            await asyncio.to_thread(each.close)


@asynccontextmanager
async def on_servers(cluster: NatsCluster, home: Home) -> AsyncGenerator[Place]:
    """As an edge of the home's zone has them."""
    state = JetStream(cluster.state)
    await state.open(*declared(home.zone))
    assert state.problem == ""
    batches = open_batches(home, state)
    place = Place(
        NatsSpending(KeyedStream(state, MONEY, GLOBAL)),
        open_responses(home, state),
        NatsKeys(KeyedStream(state, IDEMPOTENCY, home.zone)),
        batches.files,
        batches.queue,
    )
    try:
        yield place
    finally:
        await place.spending.close()
        await state.close()


def budget(payer: str, cap: float | None = 5.0) -> tuple[Budget, ...]:
    return (Budget(payer, Caps(per_day=cap, per_month=cap)),)


async def spend(place: Place, payer: str, dollars: float, cap: float = 5.0) -> None:
    hold = await place.spending.reserve(budget(payer, cap), dollars)
    place.spending.settle(hold, dollars)


async def fill(place: Place, prefix: str = "") -> None:
    """Put something of each kind in."""
    await spend(place, PAYERS[0], 0.5)
    await spend(place, PAYERS[0], 0.25)
    await spend(place, PAYERS[1], 1.5)
    for tenant in TENANTS:
        for number in range(3):
            text = b'{"n":%d,"text":"%s"}' % (number, b"x" * (600_000 if number == 2 else 10))
            stored = StoredResponse(response=msgspec.Raw(text), messages=[], ids=[f"i{number}"])
            assert await place.responses.put(tenant, f"{prefix}resp_{number}", stored)
        key = IdempotencyKey(f"{prefix}key {tenant}", b"d" * 32)
        await place.keys.claim(tenant, key, f"{prefix}first", b"defaults")
    await asyncio.to_thread(_fill_queue, place, prefix)


def _fill_queue(place: Place, prefix: str) -> None:
    for tenant in TENANTS:
        place.files.put(tenant, f"{prefix}file-1", "in.jsonl", "batch", [LARGE], residency="eu")
        place.files.put(tenant, f"{prefix}file-2", "out.jsonl", "batch_output", [b"small"])
        place.files.put(tenant, f"{prefix}file-3", "empty", "batch", [])
    queue, names = place.queue, ("done", "half", "cancelled", "dead", "fresh")
    for name in names:
        some = [NewItem(f"{name}-{i}".encode() * 9, f"r{i}") for i in range(6)]
        queue.submit(
            batch(f"{prefix}{name}", tenant=TENANTS[0], model=f"m-{prefix}{name}",
                  key=f"{prefix}{name}", fingerprint=b"f", window=3600.0), some,
        )  # fmt: skip
    assert queue.lead("w")
    for claim in _claimed(queue, f"{prefix}done", 6):
        assert queue.settle(claim, "succeeded", LARGE if claim.index == 4 else b"ok")
    queue.close_batch(f"{prefix}done")
    first, second, third, fourth = _claimed(queue, f"{prefix}half", 4)
    assert queue.settle(first, "succeeded", b"yes")
    assert queue.settle(third, "failed", b"no")
    assert queue.settle(fourth, "dead", b"gone")
    assert queue.defer(second, 0.0, counts=True)
    for claim in _claimed(queue, f"{prefix}cancelled", 2)[1:]:
        assert queue.settle(claim, "succeeded", b"in time")
    queue.release("w")
    queue.cancel(TENANTS[0], f"{prefix}cancelled")
    assert queue.lead("w")
    for claim in _claimed(queue, f"{prefix}dead", 6):
        assert queue.settle(claim, "dead", b"dead")
    queue.release("w")


def _claimed(queue: Queue, name: str, limit: int) -> list[Any]:
    claims = queue.claim("w", frozenset({f"m-{name}"}), limit, 60.0)
    assert len(claims) == limit
    return sorted(claims, key=lambda claim: int(claim.index))


async def picture(place: Place, prefix: str = "") -> dict[str, Any]:
    """All that can be seen of it."""
    seen: dict[str, Any] = {payer: await place.spending.spent(payer) for payer in PAYERS}
    for tenant in TENANTS:
        for number in range(3):
            stored = await place.responses.get(tenant, f"{prefix}resp_{number}")
            seen[f"{tenant} {number}"] = msgspec.json.encode(stored)
        key = IdempotencyKey(f"{prefix}key {tenant}", b"d" * 32)
        seen[f"key of {tenant}"] = await place.keys.claim(tenant, key, "another", b"")
    return seen | await asyncio.to_thread(_queue_picture, place)


def _queue_picture(place: Place) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for tenant in TENANTS:
        files = place.files.page(tenant)
        seen[f"files of {tenant}"] = [replace(file, content="") for file in files]
        for file in files:
            pieces = iter(range(100))
            data = b""
            while (piece := place.files.piece(tenant, file, next(pieces))) is not None:
                data += piece
            seen[f"{tenant} {file.id}"] = data
    for record in place.queue.batches():
        known = asdict(record)
        seen[f"batch {record.id}"] = known
        seen[f"results of {record.id}"] = place.queue.results(record.id)
    return seen


def still_waiting(place: Place, *names: str) -> list[tuple[str, int, bytes, int, str, str]]:
    """What a worker gets to do: batch, index, payload, attempt, token and target."""
    assert place.queue.lead("v")
    models = frozenset(f"m-{name}" for name in names)
    claims = place.queue.claim("v", models, 100, 60.0)
    place.queue.release("v")
    return sorted(
        (each.batch, each.index, each.payload, each.attempt, each.token, each.target)
        for each in claims
    )


def use(journal: Path, *ids: str) -> None:
    """Have requests in a journal."""
    opened = UsageJournal(journal, edge="e")
    for number, id in enumerate(ids, start=1):
        entry = opened.admit(id, tenant="t", token="k", model="m", prompt_tokens=1, price=PRICE)
        entry.settle("completed", Amount(prompt_tokens=number, output_tokens=10 * number))
    assert flush(opened)
    opened.close()


def used(journal: Path) -> tuple[int, int, int]:
    """Requests, prompt tokens and output tokens."""
    with reading(journal) as database:
        [total] = totals(database)
    return total.requests, total.prompt_tokens, total.output_tokens


async def used_on(cluster: NatsCluster, home: Home, folder: Path) -> tuple[int, int, int]:
    """The same of the servers, as a new edge has it."""
    state = JetStream(cluster.state)
    await state.open(*declared(home.zone))
    journal = folder / f"{time.monotonic_ns()}" / JOURNAL_NAME
    usage = NatsUsage(journal, KeyedStream(state, USAGE, home.zone), edge="other")
    await usage.take()
    await usage.close()
    await state.close()
    return used(journal)
