"""Traces of requests: public ones in their own formats, and a platform's own journal.

| file | columns |
|---|---|
| Mooncake's (FAST'25), `.jsonl` | timestamp (ms), input_length, output_length, hash_ids |
| Azure's of 2023, `.csv` | TIMESTAMP, ContextTokens, GeneratedTokens |
| BurstGPT's, `.csv` | Timestamp (s), Request tokens, Response tokens |
| a usage journal, `.sqlite` | `skerry_edge.ledger.usage_tables` |

Each may be compressed (`.gz`). Times are seconds from the first request; a block is the trace's own
unit of shared prefixes.
"""

from __future__ import annotations

import csv
import gzip
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import TextIO

import orjson

MOONCAKE_BLOCK = 512  # tokens per hash id
SQLITE = b"SQLite format 3\0"
MAX_TOKENS = 1 << 24


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
    """Requests by arrival, and how many tokens each of their blocks has; 0: they have none."""

    requests: list[TraceRequest]
    block_size: int


def read_trace(path: Path) -> RequestTrace:
    """Read a file of any known format. Raises `TraceError`, or `OSError`."""
    with path.open("rb") as raw:
        if raw.read(len(SQLITE)) == SQLITE:
            return RequestTrace(_journal(path), 0)
    opener: Callable[..., TextIO] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        try:
            head = file.readline()
            file.seek(0)
            if head.lstrip().startswith("{"):
                found, size = list(_mooncake(path, file)), MOONCAKE_BLOCK
            else:
                found, size = list(_table(path, file)), 0
        except (UnicodeDecodeError, gzip.BadGzipFile, csv.Error) as error:
            raise TraceError(f"{path}: {error}") from None
    if not found:
        raise TraceError(f"{path}: no request in it")
    start = min(request.arrival for request in found)
    moved = [replace(request, arrival=request.arrival - start) for request in found]
    return RequestTrace(sorted(moved, key=attrgetter("arrival")), size)


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
    return TraceRequest(at(time), _count(prompt), _count(tokens) if tokens else 0)


def _date(text: str) -> float:
    return datetime.fromisoformat(text[:26]).timestamp()


def _count(value: int | str) -> int:
    count = int(value)
    if not 0 < count <= MAX_TOKENS:
        raise ValueError(f"{count} tokens")
    return count


def _journal(path: Path) -> list[TraceRequest]:
    """Return the requests of a usage journal that made something, by admission."""
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as database:
            rows = database.execute(
                "SELECT admitted, prompt_tokens, output_tokens FROM usage"
                " WHERE output_tokens > 0 AND prompt_tokens > 0 ORDER BY admitted"
            ).fetchall()
    except sqlite3.Error as error:
        raise TraceError(f"{path}: not a usage journal: {error}") from None
    if not rows:
        raise TraceError(f"{path}: no request in it")
    start = rows[0][0]
    return [TraceRequest(at - start, prompt, output) for at, prompt, output in rows]


def spread(trace: Sequence[TraceRequest], rng: Random, tick: float) -> list[TraceRequest]:
    """Return the trace with its times, which were rounded down to a `tick`, anywhere within it.

    Mooncake's are rounded to 3 s: ten requests at once that did not come at once.
    """
    moved = [replace(each, arrival=each.arrival + rng.uniform(0, tick)) for each in trace]
    return sorted(moved, key=attrgetter("arrival"))
