"""The table of usage, what is written to it, and the amounts of a request."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from skerry_regions.drivers.sqlite_steps import Steps, added_column

Values = tuple[str | float | bytes, ...] | dict[str, str | float]
Statement = tuple[str, Values | Callable[[], Values]]  # some are made where they are written

logger = logging.getLogger(__name__)

Outcome = Literal["running", "completed", "cached", "cancelled", "failed", "aborted"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, edge TEXT NOT NULL, life TEXT NOT NULL,
    tenant TEXT NOT NULL, token TEXT NOT NULL, model TEXT NOT NULL,
    admitted REAL NOT NULL, settled REAL, outcome TEXT NOT NULL DEFAULT 'running',
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, queue_seconds REAL NOT NULL DEFAULT 0,
    prefill_seconds REAL NOT NULL DEFAULT 0, decode_seconds REAL NOT NULL DEFAULT 0,
    prompt_price REAL NOT NULL, cached_price REAL NOT NULL, output_price REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS usage_admitted ON usage (admitted);
CREATE INDEX IF NOT EXISTS usage_tenant ON usage (tenant, admitted);
CREATE INDEX IF NOT EXISTS usage_token ON usage (token, admitted);
CREATE INDEX IF NOT EXISTS usage_unsettled ON usage (edge) WHERE settled IS NULL;
"""
WRITES: Final = {  # of the prompt's tokens those computed and kept for a time; in US$
    "written_tokens": "INTEGER NOT NULL DEFAULT 0",
    "written_cost": "REAL NOT NULL DEFAULT 0",
}
STEPS: Steps = (
    SCHEMA,
    added_column("usage", "chain", "BLOB NOT NULL DEFAULT x''"),
    *(added_column("usage", name, declaration) for name, declaration in WRITES.items()),
    added_column("usage", "change", "INTEGER NOT NULL DEFAULT 1"),
    """
    CREATE TABLE IF NOT EXISTS followed (
        stream TEXT PRIMARY KEY, created TEXT NOT NULL, sequence INTEGER NOT NULL
    )
    """,
)
"""`chain`: `skerry_regions.digests.prefix_chain` of the prompt, or nothing. `change`: how often the
row changed, below 0 once other homes have it so; `life`: empty in rows that others sent.
`followed`: up to where a stream of their rows was read, see `skerry_edge.shared.nats_usage`."""

# A row that is complete never changes; of several attempts the one that came furthest counts.
ADMIT = """
INSERT INTO usage (id, edge, life, tenant, token, model, admitted, prompt_tokens,
                   prompt_price, cached_price, output_price)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET edge = excluded.edge, life = excluded.life, settled = NULL,
    outcome = 'running', change = ABS(change) + 1 WHERE outcome <> 'completed'
"""
CHAIN = """
UPDATE usage SET chain = ? WHERE id = ? AND settled IS NULL
"""
PROGRESS = """
UPDATE usage SET output_tokens = ?1 WHERE id = ?2 AND settled IS NULL AND output_tokens < ?1
"""
SETTLE = """
UPDATE usage SET outcome = :outcome, prompt_tokens = :prompt, cached_tokens = :cached,
    output_tokens = :output, queue_seconds = :queue, prefill_seconds = :prefill,
    decode_seconds = :decode, written_tokens = :written, written_cost = :written_cost,
    change = ABS(change) + 1
WHERE id = :id AND outcome <> 'completed'
    AND (:outcome = 'completed' OR output_tokens <= :output)
"""
CLOSE = """
UPDATE usage SET settled = :now, outcome = IIF(outcome = 'running', :outcome, outcome),
    change = ABS(change) + 1
WHERE id = :id AND settled IS NULL
"""
SETTLE_DEAD = """
UPDATE usage SET outcome = 'aborted', settled = ?, change = ABS(change) + 1
WHERE settled IS NULL AND edge = ? AND life <> ?
"""

SETTLE_LOST = """
UPDATE usage SET outcome = 'aborted', settled = ?, change = ABS(change) + 1
WHERE settled IS NULL AND admitted < ?
"""


class Amount(Struct, frozen=True, kw_only=True):
    """What a request took. Seconds are those of engines, summed over its choices."""

    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0  # of the prompt: computed, and kept cached for a time
    written_dollars: float = 0.0  # what those cost
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


def execute(database: sqlite3.Connection, statement: Statement) -> None:
    """Execute a statement; one that can never be executed is left out, and said so.

    Raises what is wrong with the file or the machine, which may pass.
    """
    sql, values = statement
    try:
        database.execute(sql, values() if callable(values) else values)
    except Exception as error:
        is_of_file = isinstance(error, OSError | MemoryError | sqlite3.OperationalError)
        if is_of_file or type(error) is sqlite3.DatabaseError:  # its subclasses are of statements
            raise
        logger.error("a statement of the usage journal is left out: %r", error)
