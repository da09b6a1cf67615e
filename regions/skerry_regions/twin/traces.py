"""Traces of requests: public ones in their own formats, and a platform's own journal.

| file | columns |
|---|---|
| Mooncake's (FAST'25), `.jsonl` | timestamp (ms), input_length, output_length, hash_ids |
| Azure's of 2023, `.csv` | TIMESTAMP, ContextTokens, GeneratedTokens |
| BurstGPT's, `.csv` | Timestamp (s), Request tokens, Response tokens; ours have Chain (hex) too |
| a usage journal, `.sqlite` | `skerry_edge.ledger.usage_tables` |

Each may be compressed (`.gz`). Times are seconds from the first request; a block is the trace's own
unit of shared prefixes. Chains are those of `skerry_regions.digests.prefix_chain`.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any, TextIO

import orjson

from skerry_regions.digests import BLOCK_SIZE, CHAIN_NAME_SIZE, chain_depths

MOONCAKE_BLOCK = 512  # tokens per hash id
SQLITE = b"SQLite format 3\0"
MAX_TOKENS = 1 << 24
CHAIN_COLUMN = "Chain"


class TraceError(ValueError):
    """A trace that cannot be read; the message says the file, and the line where there is one."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Equal `blocks` at equal positions are equal prefixes."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests by arrival, and how many tokens each of their blocks has; 0: they have none.

    `is_thinned`: they have a name at `chain_depths` alone, each for the whole prefix.
    """

    requests: list[TraceRequest]
    block_size: int
    is_thinned: bool = False

    @property
    def depths(self) -> Sequence[int]:
        """Return, by number of a request's names, how many blocks they stand for."""
        if self.is_thinned:
            return 0, *chain_depths(MAX_TOKENS // BLOCK_SIZE)
        return range(MAX_TOKENS + 1)


def read_trace(path: Path) -> RequestTrace:
    """Read a file of any known format. Raises `TraceError`, or `OSError`."""
    with path.open("rb") as raw:
        if raw.read(len(SQLITE)) == SQLITE:
            return _of_chains(_journal(path))
    opener: Callable[..., TextIO] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        try:
            head = file.readline()
            file.seek(0)
            is_mooncake = head.lstrip().startswith("{")
            found = list((_mooncake if is_mooncake else _table)(path, file))
        except (UnicodeDecodeError, gzip.BadGzipFile, csv.Error) as error:
            raise TraceError(f"{path}: {error}") from None
    if not found:
        raise TraceError(f"{path}: no request in it")
    start = min(request.arrival for request in found)
    moved = [replace(request, arrival=request.arrival - start) for request in found]
    moved.sort(key=attrgetter("arrival"))
    return RequestTrace(moved, MOONCAKE_BLOCK) if is_mooncake else _of_chains(moved)


def _of_chains(requests: list[TraceRequest]) -> RequestTrace:
    has_names = any(request.blocks for request in requests)
    return RequestTrace(requests, BLOCK_SIZE if has_names else 0, is_thinned=has_names)


def _mooncake(path: Path, file: TextIO) -> Iterator[TraceRequest]:
    for number, line in enumerate(file, 1):
        try:
            row = orjson.loads(line)
            tokens = _count(row["input_length"])
            full = tokens // MOONCAKE_BLOCK  # a part of a block is not shareable
            yield TraceRequest(
                arrival=float(row["timestamp"]) / 1000,
                prompt_tokens=tokens,
                output_tokens=_count(row["output_length"]),
                blocks=tuple(int(i).to_bytes(8, "big") for i in row["hash_ids"][:full]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"{path}:{number}: not a request of Mooncake's: {error!r}") from None


def _table(path: Path, file: TextIO) -> Iterator[TraceRequest]:
    rows = csv.DictReader(file)
    names = set(rows.fieldnames or ())
    at: Callable[[str], float]
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= names:
        columns, at = ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date
    elif {"Timestamp", "Request tokens", "Response tokens"} <= names:
        columns, at = ("Timestamp", "Request tokens", "Response tokens"), float
    else:
        raise TraceError(f"{path}:1: columns are neither Azure's nor BurstGPT's")
    for number, row in enumerate(rows, 2):
        try:
            request = _of_columns(row, columns, at)
        except (TypeError, ValueError) as error:
            raise TraceError(f"{path}:{number}: {error}") from None
        if request.output_tokens:  # BurstGPT's zeros are requests that failed
            yield request


def _of_columns(
    row: Mapping[str, str], columns: tuple[str, str, str], at: Callable[[str], float]
) -> TraceRequest:
    time, prompt, output = (row[name] for name in columns)
    if _date is at:
        output = str(max(int(output), 1))
    tokens = int(output)
    names = names_in(bytes.fromhex(row.get(CHAIN_COLUMN) or ""), _count(prompt))
    return TraceRequest(at(time), _count(prompt), _count(tokens) if tokens else 0, names)


def _date(text: str) -> float:
    return datetime.fromisoformat(text[:26]).timestamp()


def _count(value: int | str) -> int:
    count = int(value)
    if not 0 < count <= MAX_TOKENS:
        raise ValueError(f"{count} tokens")
    return count


def _journal(path: Path) -> list[TraceRequest]:
    """Return the requests of a usage journal that made something, by admission."""
    made = "output_tokens > 0 AND prompt_tokens > 0"
    try:
        rows = journal_rows(path, "admitted, prompt_tokens, output_tokens", made)
        start = rows[0][0] if rows else 0.0
        found = [
            TraceRequest(at - start, prompt, output, names_in(chain, prompt))
            for at, prompt, output, chain in rows
        ]
    except (sqlite3.Error, ValueError) as error:
        raise TraceError(f"{path}: not a usage journal: {error}") from None
    if not found:
        raise TraceError(f"{path}: no request in it")
    return found


def journal_rows(
    path: Path, columns: str, condition: str, values: Sequence[float] = ()
) -> list[tuple[Any, ...]]:
    """Return columns of a usage journal's rows, and last their chains, by admission.

    Raises sqlite3.Error.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        known = {row[1] for row in database.execute("PRAGMA table_info(usage)")}
        chain = "chain" if "chain" in known else "x''"  # none were kept before
        return database.execute(
            f"SELECT {columns}, {chain} FROM usage WHERE {condition} ORDER BY admitted", values
        ).fetchall()


def names_in(chain: bytes, prompt_tokens: int) -> tuple[bytes, ...]:
    """Return the names of a chain. Raises ValueError for one that no such prompt has."""
    names = [chain[at : at + CHAIN_NAME_SIZE] for at in range(0, len(chain), CHAIN_NAME_SIZE)]
    room = sum(1 for _ in chain_depths(prompt_tokens // BLOCK_SIZE)) if names else 0
    if len(chain) % CHAIN_NAME_SIZE or len(names) > room:
        raise ValueError(f"a prompt of {prompt_tokens} tokens has no chain of {len(chain)} bytes")
    return tuple(names)


def spread(trace: Sequence[TraceRequest], rng: Random, tick: float) -> list[TraceRequest]:
    """Return the trace with its times, which were rounded down to a `tick`, anywhere within it.

    Mooncake's are rounded to 3 s: ten requests at once that did not come at once.
    """
    moved = [replace(each, arrival=each.arrival + rng.uniform(0, tick)) for each in trace]
    return sorted(moved, key=attrgetter("arrival"))
