"""What is copied from one place to another: records by key, each written once however often it is
begun.

A copy writes what its destination lacks. So one that was killed goes on where it was when it is
begun again, and what is copied twice is there once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import Struct

RecordT = TypeVar("RecordT")


class StateTable(Protocol[RecordT]):
    """One end of a copy. Calls block; both ends have the same keys. Raises `Unavailable`."""

    def keys(self) -> list[str]:
        """Return the keys of what is there, in the order in which it is to be written."""
        ...

    def read(self, key: str) -> RecordT | None:
        """Return a record; None of one that is not there any more."""
        ...

    def write(self, record: RecordT, /) -> None:
        """Keep a record as it was elsewhere, whole or not at all."""
        ...


class CopiedTable(Struct, frozen=True):
    """What came of copying a table."""

    table: str
    at_source: int
    written: int
    missing: int  # at the destination, of what is at the source


def copy_table(
    name: str,
    source: StateTable[Any],
    destination: StateTable[Any],
    progress: Callable[[int, int], None],
) -> CopiedTable:
    """Have all records at the destination. `progress` is called with how many are, of how many."""
    keys, there, written = source.keys(), {*destination.keys()}, 0
    for number, key in enumerate(keys, start=1):
        if key not in there and (record := source.read(key)) is not None:
            destination.write(record)
            written += 1
        progress(number, len(keys))
    there = {*destination.keys()}
    left = source.keys()
    return CopiedTable(name, len(left), written, sum(key not in there for key in left))
