"""The log of all transactions, on NATS servers: one stream of one subject, so that a transaction's
sequence is the log's, and whole databases beside it, to begin with.

Blocks: call it on threads, not on the loop of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from skerry.errors import Unavailable
from skerry_regions.control.errors import Busy, TooLarge
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.stream import (
    WRITE_SECONDS,
    KeyedStream,
    RevisionConflict,
    Stored,
    StreamState,
    Write,
    until_known,
)
from skerry_regions.drivers.jetstream.tables import CONTROL, PICTURES
from skerry_regions.drivers.jetstream.values import read_value, write_value
from skerry_regions.zones import GLOBAL

KEY = "tx"
MAX_MESSAGE_BYTES = CONTROL.max_message_bytes - 4096  # less subject and headers

T = TypeVar("T")


class Outdated(Exception):
    """Another transaction was appended since what was read; ours was not."""


class TransactionLog:
    """See above. Methods raise Busy while the servers cannot be used."""

    def __init__(
        self, jetstream: JetStream, loop: asyncio.AbstractEventLoop, zone: str = GLOBAL
    ) -> None:
        self._loop = loop
        self._transactions = KeyedStream(jetstream, CONTROL, zone)
        self._pictures = KeyedStream(jetstream, PICTURES, zone)

    @property
    def name(self) -> str:
        return self._transactions.name

    def append(self, data: bytes, expected: int) -> int:
        """Append to what ends at `expected`; return the sequence.

        The same bytes are sent under the same expectation until the outcome is known. Raises
        Outdated, TooLarge, or Busy, after which it may be there all the same.
        """
        if len(data) > MAX_MESSAGE_BYTES:
            raise TooLarge(
                f"the change takes {len(data)} bytes of the log, which keeps {MAX_MESSAGE_BYTES} "
                "of each: make it in several parts"
            )
        return self._wait(self._append(Write(KEY, data, expected), expected))

    async def _append(self, write: Write, expected: int) -> int:
        try:
            return await self._transactions.write(write, seconds=WRITE_SECONDS)
        except RevisionConflict:
            behind = expected + 1  # where ours is, if it is there: others may have come after it
            ours = await until_known(lambda: self._transactions.next(behind), WRITE_SECONDS)
            if ours is not None and ours.id == write.id:
                return ours.sequence
            raise Outdated from None

    def next(self, sequence: int) -> Stored | None:
        """Return the first transaction from a sequence on; None where there is none yet."""
        return self._wait(self._transactions.next(sequence))

    def state(self) -> StreamState:
        """Return how long the log is."""
        return self._wait(self._transactions.state())

    def keep_picture(self, name: str, database: bytes) -> None:
        """Keep a whole database."""
        self._wait(write_value(self._pictures, name, database, seconds=WRITE_SECONDS))

    def picture(self, name: str) -> bytes | None:
        """Return a database; None where it is not there, or not whole."""
        return self._wait(read_value(self._pictures, name))

    def pictures(self) -> list[int]:
        """Return the sequences after which pictures were made, oldest first."""
        names = self._wait(self._pictures.keys("after.*"))
        return sorted(int(name.removeprefix("after.")) for name in names)

    def forget_pictures(self) -> None:
        """Remove all but the newest two, and what replaced everything before them."""
        *former, oldest, _ = [0, *self.pictures()]
        kept = self._wait(self._pictures.last(f"after.{oldest}"))
        if kept is not None:
            self._wait(self._pictures.delete("replacing.>", through=kept.sequence))
        for sequence in former:
            for name in (f"after.{sequence}.>", f"after.{sequence}"):
                self._wait(self._pictures.delete(name))

    def _wait(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(request, self._loop).result()
        except Unavailable as error:
            raise Busy(f"the log of what is wanted cannot be used now: {error.message}") from None
