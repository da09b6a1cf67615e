"""Edges that account for what they serve, and share it."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import msgspec
from tests.edge.ledger.journal_rows import flush

from skerry_edge.ledger.usage_journal import UsageEntry, UsageJournal
from skerry_edge.ledger.usage_report import Totals, reading, totals
from skerry_edge.ledger.usage_tables import Amount, Outcome
from skerry_edge.shared.nats_usage import NatsUsage
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.models.catalog import Price

PRICE = Price(prompt=1.0, cached=0.25, output=4.0)
Figures = tuple[int, int, int, int]
"""Requests, prompt, cached and output tokens."""


class Accountant:
    """An edge as far as usage goes, which shares when it is told to."""

    def __init__(self, path: Path, stream: KeyedStream | None = None) -> None:
        self.id = f"edge-{secrets.token_hex(4)}"
        self.path = path
        self.stream = stream
        self.journal = UsageJournal(path, edge=self.id)
        self.shared = None if stream is None else NatsUsage(path, stream, edge=self.id)

    def admit(self, id: str) -> UsageEntry:
        return self.journal.admit(
            id, tenant="t", token="k", model="m", prompt_tokens=1, price=PRICE
        )

    def request(self, id: str, outcome: Outcome, prompt: int, cached: int, output: int) -> None:
        amount = Amount(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
        self.admit(id).settle(outcome, amount)

    async def send(self) -> None:
        assert await asyncio.to_thread(flush, self.journal)
        if self.shared is not None:
            await self.shared.send()

    async def take(self) -> None:
        if self.shared is not None:
            await self.shared.take()

    def total(self) -> Totals:
        assert flush(self.journal)
        with reading(self.path) as database:
            [total] = totals(database)
        return total

    def figures(self) -> Figures:
        total = self.total()
        return total.requests, total.prompt_tokens, total.cached_tokens, total.output_tokens

    def close(self) -> None:
        self.journal.close()


def counts(total: Totals) -> dict[str, int]:
    """All sums that do not depend on the order of rows."""
    return {
        name: value for name, value in msgspec.structs.asdict(total).items() if type(value) is int
    }


async def share(*edges: Accountant) -> None:
    for edge in edges:
        await edge.send()
    for edge in edges:
        await edge.take()
