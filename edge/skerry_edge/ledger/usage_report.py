"""Sums over usage journals: by tenant, token, model and day, with what they cost.

A request's cost is that of its phases: computed prompt, cached prompt, output. Nothing is charged
for requests that failed, and for answers out of the response cache.
"""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast, get_args

from msgspec import UNSET, Struct, UnsetType

from skerry_edge.database import BUSY_SECONDS
from skerry_edge.ledger.usage_tables import SCHEMA, WRITES

Dimension = Literal["tenant", "token", "model", "day", "edge"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
MAX_TOTALS = 100_000  # lines of a report
CLOCK_INSTRUCTIONS = 10_000  # of SQLite's machine, after which the clock is read

_EXPRESSIONS = {"day": "strftime('%Y-%m-%d', admitted, 'unixepoch')"}
_CHARGED = "(outcome NOT IN ('failed', 'cached')) * 1e-6"
_TOTALS = f"""
    COUNT(*), SUM(outcome = 'completed'), SUM(outcome = 'cached'), SUM(outcome = 'cancelled'),
    SUM(outcome = 'failed'), SUM(outcome = 'aborted'), SUM(outcome = 'running'),
    SUM(prompt_tokens), SUM(cached_tokens), SUM(output_tokens),
    SUM(queue_seconds), SUM(prefill_seconds), SUM(decode_seconds),
    SUM((prompt_tokens - cached_tokens - {{written_tokens}}) * prompt_price * {_CHARGED}),
    SUM(cached_tokens * cached_price * {_CHARGED}), SUM(output_tokens * output_price * {_CHARGED}),
    SUM({{written_tokens}}), SUM({{written_cost}} * (outcome NOT IN ('failed', 'cached')))
"""


class Totals(Struct, kw_only=True):
    """A line of a report: the dimensions that were requested, then sums. Costs are in US$."""

    tenant: str | UnsetType = UNSET  # account id
    token: str | UnsetType = UNSET  # id of the API token
    model: str | UnsetType = UNSET  # catalog id
    day: str | UnsetType = UNSET  # UTC, of the admission
    edge: str | UnsetType = UNSET
    requests: int
    completed: int
    cached_responses: int  # out of the response cache: no tokens, no cost
    cancelled: int  # the client went away
    failed: int
    aborted: int  # the edge died
    running: int
    prompt_tokens: int  # cached ones included
    cached_tokens: int
    output_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prompt_cost: float
    cached_cost: float
    output_cost: float
    written_tokens: int  # of the prompt's: computed, and kept cached for a time
    written_cost: float
    cost: float


def dimensions_of(text: str) -> tuple[Dimension, ...]:
    """Return `model,day` as dimensions. Raises ValueError that says what there is."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if unknown := [name for name in names if name not in DIMENSIONS]:
        raise ValueError(f"{unknown[0][:40]!r} is none of {', '.join(DIMENSIONS)}")
    if len(set(names)) != len(names):
        raise ValueError("a dimension is named twice")
    return cast("tuple[Dimension, ...]", names)


def since_of(text: str, now: float) -> float:
    """Return Unix seconds of `90m`, `24h`, `7d` or `2w` before `now`, or of a UTC day
    (`2026-11-01`).

    Raises ValueError.
    """
    if match := re.fullmatch(r"([0-9]{1,6})([mhdw])", text):
        return now - int(match[1]) * UNITS[match[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is neither a time ago (90m, 24h, 7d, 2w) nor a day (2026-11-01)"
        ) from None


def totals(
    database: sqlite3.Connection,
    by: Sequence[Dimension] = (),
    *,
    since: float = 0.0,
    tenant: str | None = None,
) -> list[Totals]:
    """Return sums of the requests admitted since then, in the order of their keys; of all, or a
    tenant's.

    Without dimensions one line, even of nothing. Raises sqlite3.Error.
    """
    sums = _TOTALS.format_map(_writes(database))
    keys = [_EXPRESSIONS.get(name, name) for name in by]
    condition, values = "admitted >= ?", [since, *([] if tenant is None else [tenant])]
    if tenant is not None:
        condition += " AND tenant = ?"
    grouped = ", ".join(map(str, range(1, len(keys) + 1)))
    rows = database.execute(
        f"SELECT {', '.join([*keys, sums])} FROM usage WHERE {condition}"
        + (f" GROUP BY {grouped} ORDER BY {grouped}" if keys else "")
        + f" LIMIT {MAX_TOTALS}",
        values,
    )
    names = [*by, *Totals.__struct_fields__[len(DIMENSIONS) : -1]]
    return [_line(dict(zip(names, row, strict=True))) for row in rows]


def _line(figures: dict[str, Any]) -> Totals:
    """Return sums of which those of no rows, which are NULL in SQL, are 0."""
    figures = {name: 0 if value is None else value for name, value in figures.items()}
    cost = sum(figures[f"{phase}_cost"] for phase in ("prompt", "cached", "output", "written"))
    return Totals(**figures, cost=cost)


def _writes(database: sqlite3.Connection) -> dict[str, str]:
    """Return expressions for what was written to the cache: no such columns are in a journal that
    no edge of this version has opened."""
    known = _columns(database)
    return {name: name if name in known else "0" for name in WRITES}


def _columns(database: sqlite3.Connection) -> list[str]:
    return [row[1] for row in database.execute("PRAGMA table_info(usage)")]


@contextlib.contextmanager
def reading(path: Path, seconds: float = math.inf) -> Generator[sqlite3.Connection]:
    """Open a journal that others may be writing. Raises sqlite3.Error; what is read for longer than
    `seconds` fails with the code SQLITE_INTERRUPT.
    """
    end = time.monotonic() + seconds
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as database:
        database.set_progress_handler(lambda: time.monotonic() > end, CLOCK_INSTRUCTIONS)
        yield database


@contextlib.contextmanager
def journals(paths: Sequence[Path], since: float = 0.0) -> Generator[sqlite3.Connection]:
    """Open several journals as one table, of the requests admitted since then. A request that is in
    two of them (its retry came to another edge) counts once, as it was completed.

    Raises sqlite3.Error for a file that is no journal.
    """
    if len(paths) == 1:
        with reading(paths[0]) as database:
            yield database
        return
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        for name, declaration in WRITES.items():
            database.execute(f"ALTER TABLE usage ADD COLUMN {name} {declaration}")
        wanted = [name for name in _columns(database) if name != "number"]
        for path in paths:
            with reading(path) as source, database:
                known = set(_columns(source))
                columns = [name for name in wanted if name in known or name not in WRITES]
                names = ", ".join(columns)
                better = ", ".join(f"{name} = excluded.{name}" for name in columns)
                database.executemany(
                    f"INSERT INTO usage ({names}) VALUES ({', '.join('?' * len(columns))})"
                    f" ON CONFLICT (id) DO UPDATE SET {better}"
                    " WHERE outcome <> 'completed' AND (excluded.outcome = 'completed'"
                    " OR excluded.output_tokens > output_tokens)",
                    source.execute(f"SELECT {names} FROM usage WHERE admitted >= ?", (since,)),
                )
        yield database
