"""A control plane without processes: its store, its writes, its HTTP API."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from skerry_dns.zone.zone_answers import ZoneAnswers
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.requests import Caller, Control
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import KINDS, ApiTokenSpec, Kind, Status
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import NodeView
from skerry_regions.control.machines.authority import Authority
from skerry_regions.control.machines.book import Machines
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.control.machines.joined import JoinedMachines
from skerry_regions.control.machines.joining import Joining
from skerry_regions.drivers.sqlite_registry import SqliteRegistry

ACCOUNT = "a" * 32
MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
BY_COLLECTION = {kind.collection: kind for kind in KINDS}


class Clock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Tokens:
    """A `TokenPublisher` that shows what was published."""

    published: dict[str, str] = field(default_factory=dict[str, str])

    def publish(self, id: str, secret_digest: str, spec: ApiTokenSpec, created_at: int) -> None:
        self.published[id] = secret_digest

    def withdraw(self, id: str) -> None:
        self.published.pop(id, None)

    def is_published(self, id: str) -> bool:
        return id in self.published

    def text(self, id: str, secret: str) -> str:
        return f"skerry_{id}_{secret}"


class Unseeing:
    """An `Observer` that has not looked yet."""

    revision = 0

    def status(self, record: Record) -> Status | None:
        return None

    def nodes(self) -> list[NodeView]:
        return []


class Api:
    """The HTTP API over a store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = Store(folder / "control.db", clock=self.clock)
        self.tokens = Tokens()
        self.changes = Changes(self.store, self.tokens, b"s" * 32)
        self.num_changed = 0
        self.ready_regions: frozenset[str] = frozenset()  # those with an edge that is ready
        self.control = Control(
            store=self.store,
            changes=self.changes,
            observer=Unseeing(),
            authenticate={
                "admin": Caller("token-1", is_admin=True),
                "reader": Caller("token-2", is_admin=False),
            }.get,
            answer_dns=ZoneAnswers(self.store, lambda: self.ready_regions),
            account_id=ACCOUNT,
            changed=self._changed,
            joining=_joining(folder, self.store),
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(self.control)),
            base_url="http://control/control/v1",
            headers={"authorization": "Bearer admin"},
        )

    async def make(self, collection: str, **values: Any) -> dict[str, Any]:
        answer = await self.http.post(f"/{collection}", json=values)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def close(self) -> None:
        await self.http.aclose()
        assert self.control.joining is not None
        self.control.joining.registry.close()
        self.store.close()

    def _changed(self) -> None:
        self.num_changed += 1


def _joining(folder: Path, store: Store) -> Joining:
    authority = Authority.open(folder / "authority.pem")
    return Joining(
        tokens=JoinTokens(store, b"s" * 32, authority.fingerprint),
        machines=Machines(store, authority),
        joined=JoinedMachines(lambda: None, store.clock),
        registry=SqliteRegistry(folder / "registry.db"),
    )


def new(store: Store, collection: str, **values: Any) -> Record:
    """Write a resource past the API."""
    kind: Kind = BY_COLLECTION[collection]
    changes = Changes(store, Tokens(), b"s" * 32)
    return changes.create(kind, values, actor="test", idempotency_key=None).record
