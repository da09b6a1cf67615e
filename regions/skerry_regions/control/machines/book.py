"""Machines that joined: who they are, and that they are no longer wanted."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.writing import Writing
from skerry_regions.control.errors import Conflict, Invalid, Revoked, UnknownResource
from skerry_regions.control.machines import join_tokens
from skerry_regions.control.machines.authority import (
    SKEW_SECONDS,
    Authority,
    BadRequest,
    Signed,
    key_digest,
    read_request,
)
from skerry_regions.control.machines.join_tokens import JoinTokenSpec, Select
from skerry_regions.control.machines.messages import JoinRequest, Kind, RenewRequest
from skerry_regions.prometheus import LabelValues

KIND = "machine"
MAX_MACHINES = 100_000
RENEWABLE_SECONDS = 30 * 86_400.0  # after its end, a certificate may still be renewed
RUNS: dict[Kind, str] = {"node": "node", "edge": "edge", "host": "node"}  # for its links
COLUMNS = (
    "id, kind, pool, region, model, hostname, version, token, key_digest, joined_at, not_after, "
    "revoked_at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as it is stored. Times are Unix seconds."""

    id: str
    kind: Kind
    pool: str  # of a node, or of a host that is for one pool
    region: str
    model: str  # of a node: catalog id of what it was assigned last; empty before it has called
    hostname: str
    version: str  # of Skerry, when it last renewed
    token: str  # id of the join token
    key_digest: str
    joined_at: float
    not_after: float  # of its certificate
    revoked_at: float | None


class Machines:
    """The machines of one store. Methods block for milliseconds: call them on a thread."""

    def __init__(self, store: Store, authority: Authority) -> None:
        self._store = store
        self._authority = authority

    def join(self, request: JoinRequest) -> tuple[Machine, Signed]:
        """Spend a token. A machine that lost the answer gets it again for the same key.

        Raises Unauthorized, Forbidden, Invalid or Conflict.
        """
        join_tokens.proven(self._store.select, request.token)  # before it costs us anything
        csr = _request_of(request)
        digest = key_digest(csr)
        with self._store.writing() as writing:
            token = join_tokens.proven(writing.execute, request.token)
            machine = _of_key(writing, token.id, digest)
            if machine is None:
                join_tokens.spend(writing, token)
                machine = _new(writing, token.spec, request, token.id, digest)
            _wanted(machine, machine.id)
            signed = self._authority.sign(csr, machine.id, RUNS[machine.kind])
            return _renewed(writing, machine, signed, request.version), signed

    def renew(self, id: str, request: RenewRequest) -> tuple[Machine, Signed]:
        """Return another certificate for a machine that is wanted. Raises Revoked or Invalid."""
        csr = _request_of(request)
        with self._store.writing() as writing:
            machine = _wanted(_find(writing.execute, id), id)
            signed = self._authority.sign(csr, id, RUNS[machine.kind])
            return _renewed(writing, machine, signed, request.version), signed

    def wanted(self, id: str) -> Machine:
        """Raises Revoked for one that was revoked, or is unknown."""
        return _wanted(_find(self._store.select, id), id)

    def told_to_run(self, machine: Machine, model: str) -> None:
        """Note what it may claim to serve from now on."""
        if machine.model != model:
            with self._store.writing() as writing:
                writing.execute("UPDATE machines SET model = ? WHERE id = ?", (model, machine.id))

    def certificate_ends(self, ids: Collection[str]) -> dict[LabelValues, float]:
        """Return when the certificates of the authority and of these machines end, for metrics."""
        ends: dict[LabelValues, float] = {("authority", "skerry"): self._authority.not_after}
        machines = (each for each in self.all() if each.id in ids)
        return ends | {("machine", each.id): each.not_after for each in machines}

    def all(self) -> list[Machine]:
        """Return them by id, those that were revoked too."""
        rows = self._store.select(f"SELECT {COLUMNS} FROM machines ORDER BY id")
        return [_machine(row) for row in rows]

    def revoked(self, now: float) -> tuple[str, ...]:
        """Return ids of those that were revoked and have a certificate whose time is not over."""
        rows = self._store.select(
            "SELECT id FROM machines WHERE revoked_at IS NOT NULL AND not_after > ? ORDER BY id",
            (now - SKEW_SECONDS,),
        )
        return tuple(str(row[0]) for row in rows)

    def get(self, id: str) -> Machine:
        """Raises UnknownResource."""
        return _known(self._store.select, id)

    def revoke(self, id: str, *, actor: str) -> Machine:
        """Refuse it from now on. Idempotent. Raises UnknownResource."""
        with self._store.writing() as writing:
            if _known(writing.execute, id).revoked_at is None:
                writing.execute(
                    "UPDATE machines SET revoked_at = ? WHERE id = ?", (writing.now, id)
                )
                writing.audit(actor, "revoke", KIND, id, writing.desired.revision, {})
        return self.get(id)


def hosts_of(store: Store) -> list[str]:
    """Return hosts that may be there, by id: that were not revoked, with certificates in force."""
    rows = store.select(
        "SELECT id FROM machines WHERE kind = 'host' AND revoked_at IS NULL AND not_after > ?",
        (store.clock(),),
    )
    return [id for (id,) in rows]


def _request_of(request: JoinRequest | RenewRequest) -> Any:
    try:
        return read_request(request.csr)
    except BadRequest as error:
        raise Invalid(str(error), field="csr") from None


def _wanted(machine: Machine | None, id: str) -> Machine:
    if machine is None or machine.revoked_at is not None:
        raise Revoked(f"the machine {id!r} was revoked; let it join again with a new token")
    return machine


def _of_key(writing: Writing, token: str, digest: str) -> Machine | None:
    rows = writing.execute(
        f"SELECT {COLUMNS} FROM machines WHERE token = ? AND key_digest = ?",
        (token, digest),
    )
    return _machine(rows[0]) if rows else None


def _new(
    writing: Writing, spec: JoinTokenSpec, request: JoinRequest, token: str, digest: str
) -> Machine:
    long_gone = writing.now - RENEWABLE_SECONDS  # whose certificate cannot be renewed any more
    writing.execute("DELETE FROM machines WHERE not_after < ?", (long_gone,))
    [(number,)] = writing.execute("SELECT count(*) FROM machines", ())
    if number >= MAX_MACHINES:
        raise Conflict(f"there are {MAX_MACHINES} machines already")
    if request.kind == "node" or (request.kind == "host" and spec.pool is not None):
        pool = _pool_of(spec, request.pool, writing.desired)
        region = writing.desired.pools()[pool].region
    else:
        pool, region = "", _region_of(spec, request, writing.desired)
    machine = Machine(
        id=f"{_named(request.kind, pool, region)}-{secrets.token_hex(4)}",
        kind=request.kind,
        pool=pool,
        region=region,
        model="",
        hostname=_shown(request.hostname),
        version=_shown(request.version),
        token=token,
        key_digest=digest,
        joined_at=writing.now,
        not_after=writing.now,
        revoked_at=None,
    )
    writing.execute(
        f"INSERT INTO machines ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        dataclasses.astuple(machine),
    )
    changes = {
        name: [None, getattr(machine, name)] for name in ("kind", "pool", "region", "hostname")
    }
    actor = f"{join_tokens.KIND} {token}"
    writing.audit(actor, "join", KIND, machine.id, writing.desired.revision, changes)
    return machine


def _named(kind: Kind, pool: str, region: str) -> str:
    """Return what the id of a machine begins with."""
    return pool if kind == "node" else f"{pool or region}-{kind}"


def _pool_of(spec: JoinTokenSpec, asked: str, desired: Desired) -> str:
    """Return the pool that a node joins. Raises Invalid."""
    pools = {
        id
        for id, pool in desired.pools().items()
        if id == spec.pool
        or (pool.region == spec.region and (not spec.roles or pool.role in spec.roles))
    }
    if asked:
        if asked not in pools:
            raise Invalid(f"the join token is not for a pool {asked!r}", field="pool")
        return asked
    if len(pools) != 1:
        choice = ", ".join(sorted(pools)[:10]) or "none"
        raise Invalid(f"name a pool that the join token is for: {choice}", field="pool")
    return pools.pop()


def _region_of(spec: JoinTokenSpec, request: JoinRequest, desired: Desired) -> str:
    """Return the region that an edge or a host joins. Raises Invalid."""
    what = "an edge" if request.kind == "edge" else "a host"
    if spec.region is None or (spec.roles and request.kind not in spec.roles):
        raise Invalid(f"the join token is not for {what}", field="kind")
    if request.pool:
        raise Invalid(f"{what} joins a region, not a pool", field="pool")
    if spec.region not in desired.regions():
        raise Invalid(f"there is no region {spec.region!r} any more", field="kind")
    return spec.region


def _renewed(writing: Writing, machine: Machine, signed: Signed, version: str) -> Machine:
    renewed = dataclasses.replace(machine, not_after=signed.not_after, version=_shown(version))
    writing.execute(
        "UPDATE machines SET not_after = ?, version = ? WHERE id = ?",
        (renewed.not_after, renewed.version, machine.id),
    )
    return renewed


def _shown(text: str) -> str:
    """Return what a machine says of itself, as it may be shown on a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _find(select: Select, id: str) -> Machine | None:
    rows = select(f"SELECT {COLUMNS} FROM machines WHERE id = ?", (id,))
    return _machine(rows[0]) if rows else None


def _known(select: Select, id: str) -> Machine:
    if (machine := _find(select, id)) is None:
        raise UnknownResource(f"there is no machine {id!r}")
    return machine


def _machine(values: Sequence[Any]) -> Machine:
    return Machine(**dict(zip(COLUMNS.split(", "), values, strict=True)))
