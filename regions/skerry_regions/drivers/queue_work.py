"""What workers do with a batch queue, and what time does to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from skerry_regions.drivers.queue_bounds import check_result
from skerry_regions.drivers.queue_file import HELD, RECORD, QueueFile, record_of
from skerry_regions.queue import (
    LEASE_SECONDS,
    BatchRecord,
    Claim,
    Settled,
)

PRUNED_AT_ONCE = 16  # batches; keeps the transaction short


class QueueWork(QueueFile):
    """The workers' side of `Queue`."""

    # --- what workers do -------------------------------------------------------------------------

    def lead(self, owner: str, lease_seconds: float = LEASE_SECONDS) -> bool:
        now = self._clock()
        with self._file.transaction() as database:
            taken = database.execute(
                "INSERT INTO leader VALUES (1, ?1, ?2) ON CONFLICT (one) DO UPDATE"
                " SET owner = ?1, until = ?2 WHERE owner = ?1 OR until <= ?3",
                (owner, now + lease_seconds, now),
            )
        return taken.rowcount > 0

    def claim(
        self, owner: str, models: frozenset[str], limit: int,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Claim]:  # fmt: skip
        claims: list[Claim] = []
        with self._file.transaction() as database:
            while len(claims) < limit:
                claim = self._claim_one(database, owner, sorted(models), lease_seconds)
                if claim is None:
                    break
                claims.append(claim)
        return claims

    def _claim_one(
        self, database: sqlite3.Connection, owner: str, models: list[str], lease_seconds: float
    ) -> Claim | None:
        """Return the next item of the tenant whose turn it is."""
        now, most = self._clock(), self._limits.attempts
        found = database.execute(
            "SELECT number, id, tenant, token, kind, model, target FROM batches"
            " LEFT JOIN turns USING (tenant)"
            f" WHERE ended IS NULL AND model IN ({', '.join('?' * len(models))})"
            " AND EXISTS (SELECT 1 FROM items WHERE batch = batches.number AND state = 'waiting'"
            " AND due <= ? AND attempts < ?) ORDER BY COALESCE(turn, 0), number LIMIT 1",
            (*models, now, most),
        ).fetchone()
        if found is None:
            return None
        number, id, tenant, token, kind, model, target = found
        item, position, payload, attempt = database.execute(
            "UPDATE items SET owner = ?, due = ?, attempts = attempts + 1 WHERE number ="
            " (SELECT number FROM items WHERE batch = ? AND state = 'waiting' AND due <= ?"
            " AND attempts < ? ORDER BY due, position LIMIT 1)"
            " RETURNING number, position, payload, attempts",
            (owner, now + lease_seconds, number, now, most),
        ).fetchone()
        database.execute(
            "INSERT OR REPLACE INTO turns"
            " VALUES (?, (SELECT COALESCE(MAX(turn), 0) + 1 FROM turns))",
            (tenant,),
        )
        database.execute(
            "UPDATE batches SET started = ? WHERE number = ? AND started IS NULL",
            (self._wall_clock(), number),
        )
        return Claim(
            item=item, owner=owner, batch=id, index=position, tenant=tenant, token=token, kind=kind,
            model=model, target=target, payload=bytes(payload), attempt=attempt,
            is_last=attempt >= most,
        )  # fmt: skip

    def renew(
        self, owner: str, items: Collection[int], lease_seconds: float = LEASE_SECONDS
    ) -> frozenset[int]:
        with self._file.transaction() as database:
            rows = database.execute(
                "UPDATE items SET due = ? WHERE owner = ? AND state = 'waiting'"
                f" AND number IN ({', '.join('?' * len(items))}) RETURNING number",
                (self._clock() + lease_seconds, owner, *items),
            ).fetchall()
        return frozenset(number for (number,) in rows)

    def settle(self, claim: Claim, state: Settled, result: bytes) -> bool:
        check_result(self._limits, result)
        with self._file.transaction() as database:
            held = database.execute(
                f"SELECT batch, length(payload) FROM items WHERE {HELD}",
                (claim.item, claim.owner),
            ).fetchone()
            if held is None:
                return False
            batch, payload_bytes = held
            keeps_payload = state == "dead"
            database.execute(
                "UPDATE items SET state = ?, result = ?, owner = NULL,"
                " payload = CASE WHEN ? THEN payload ELSE x'' END WHERE number = ?",
                (state, result, keeps_payload, claim.item),
            )
            freed = 0 if keeps_payload else payload_bytes
            self._count(database, batch, state, len(result) - freed)
        return True

    def defer(self, claim: Claim, seconds: float, *, counts: bool) -> bool:
        with self._file.transaction() as database:
            deferred = database.execute(
                f"UPDATE items SET owner = NULL, due = ?, attempts = attempts - ? WHERE {HELD}",
                (self._clock() + seconds, 0 if counts else 1, claim.item, claim.owner),
            )
        return deferred.rowcount > 0

    def release(self, owner: str) -> None:
        with self._file.transaction() as database:
            database.execute(
                "UPDATE items SET owner = NULL, due = 0, attempts = attempts - 1"
                " WHERE owner = ? AND state = 'waiting'",
                (owner,),
            )
            database.execute("DELETE FROM leader WHERE owner = ?", (owner,))

    # --- what time brings ------------------------------------------------------------------------

    def tend(self) -> None:
        now = self._wall_clock()
        with self._file.transaction() as database:
            late = database.execute(
                "SELECT number FROM batches WHERE ended IS NULL AND expires <= ?",
                (now,),
            ).fetchall()
            for (number,) in late:
                self._end(database, number, "expired")
            self._bury_lost(database)
            old = database.execute(
                "SELECT number FROM batches WHERE ended <= ? LIMIT ?",
                (now - self._limits.retention_seconds, PRUNED_AT_ONCE),
            ).fetchall()
            database.executemany("DELETE FROM batches WHERE number = ?", old)

    def _bury_lost(self, database: sqlite3.Connection) -> None:
        """Bury items whose last attempt's lease lapsed: their worker died each time, or was cut
        off."""
        lost = database.execute(
            "UPDATE items SET state = 'dead', owner = NULL WHERE state = 'waiting' AND due <= ?"
            " AND attempts >= ? AND batch IN (SELECT number FROM batches WHERE ended IS NULL)"
            " RETURNING batch",
            (self._clock(), self._limits.attempts),
        ).fetchall()
        for (batch,) in lost:
            self._count(database, batch, "dead", 0)

    def has_work(self) -> bool:
        with self._file.reading() as database:
            (found,) = database.execute(
                "SELECT EXISTS (SELECT 1 FROM batches WHERE closed IS NULL)"
            ).fetchone()
        return bool(found)

    def ended(self, limit: int = 10) -> list[BatchRecord]:
        with self._file.reading() as database:
            rows = database.execute(
                f"SELECT {RECORD} FROM batches WHERE closed IS NULL AND ended IS NOT NULL"
                " ORDER BY number LIMIT ?",
                (limit,),
            ).fetchall()
        return [record_of(row) for row in rows]

    def close_batch(self, id: str) -> None:
        with self._file.transaction() as database:
            database.execute(
                "UPDATE batches SET closed = ? WHERE id = ? AND closed IS NULL",
                (self._wall_clock(), id),
            )
