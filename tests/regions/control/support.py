"""A control plane without processes: its store, its writes, its HTTP API."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
from msgspec import structs
from tests.clock import Clock
from tests.regions.control.log.logs import Opener, in_file

from skerry_cli.home.shared.limits_file import LimitsFile
from skerry_dns.zone.zone_answers import ZoneAnswers
from skerry_regions.access import SCOPES_OF, AccessRole, Grant
from skerry_regions.control.api.access import ControlCaller, Denials
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.requests import Control
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import KINDS, ApiTokenSpec, ResourceKind, Status
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import NodeView, ResourceFailure
from skerry_regions.control.errors import UnknownResource
from skerry_regions.control.machines.authority import Authority
from skerry_regions.control.machines.book import Machines
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.control.machines.joined import JoinedMachines
from skerry_regions.control.machines.joining import Joining, OwnMachine
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.control.reconcile.control_metrics import ControlMetrics
from skerry_regions.control.reconcile.failures import Failures
from skerry_regions.control.reconcile.model_manager import ModelManager
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.control.reconcile.scraping import Monitoring
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.models.catalog import Catalog
from skerry_regions.registry import Member

ACCOUNT = "a" * 32
MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
NODE = NodeView(
    id="fra-all-0", kind="node", owner="fra-all", region="fra", pid=1, state="ready", updated=True,
    streams=3,
)  # fmt: skip
BY_COLLECTION = {kind.collection: kind for kind in KINDS}


@dataclass
class Tokens:
    """A `TokenPublisher` that shows what was published."""

    published: dict[str, str] = field(default_factory=dict[str, str])
    caps: dict[str, tuple[float | None, float | None]] = field(
        default_factory=dict[str, tuple[float | None, float | None]]
    )
    logins: dict[str, tuple[str, str, Grant]] = field(
        default_factory=dict[str, tuple[str, str, Grant]]
    )

    def publish(self, id: str, secret_digest: str, spec: ApiTokenSpec, created_at: int) -> None:
        self.published[id] = secret_digest

    def stand_for(self, id: str, login: str, account_id: str, grant: Grant) -> None:
        self.logins[id] = login, account_id, grant

    def withdraw(self, id: str) -> None:
        self.published.pop(id, None)

    def set_caps(self, id: str, spec: ApiTokenSpec) -> None:
        self.caps[id] = spec.per_day, spec.per_month

    def rotate(self, id: str, secret_digest: str, grace_seconds: int) -> bool:
        is_known = id in self.published
        if is_known:
            self.published[id] = secret_digest
        return is_known

    def is_published(self, id: str) -> bool:
        return id in self.published

    def text(self, id: str, secret: str) -> str:
        return f"skerry_{id}_{secret}"


def caller(
    id: str, role: AccessRole | None, account_id: str = ACCOUNT, **bounds: Any
) -> ControlCaller:
    """Whoever has a token of this role and account, with bounds of their own."""
    return ControlCaller(
        id=id,
        account_id=account_id,
        grant=structs.replace(Grant(role=role, scopes=SCOPES_OF[role]), **bounds),
        is_platforms=account_id == ACCOUNT,
    )


class Unseeing:
    """An `Observer` that has not looked yet."""

    revision = 0
    num_errors = 0
    seconds_behind = 0.25
    members: tuple[Member, ...] = ()

    def __init__(self) -> None:
        self.statuses: dict[str, Status] = {}
        self.failures = Failures(Random(1))
        self.drained: list[str] = []

    def status(self, record: Record) -> Status | None:
        return self.statuses.get(record.id)

    def nodes(self) -> list[NodeView]:
        return []

    def failing(self) -> list[ResourceFailure]:
        return []

    def drain(self, id: str) -> NodeView:
        if id != NODE.id:
            raise UnknownResource(f"there is no node or edge {id}")
        self.drained.append(id)
        return NODE


class Api:
    """The HTTP API over a store in a folder."""

    def __init__(self, folder: Path, opener: Opener = in_file) -> None:
        self.clock = Clock(1_700_000_000.0)
        self.store = opener(folder / "control.db", self.clock)
        self.tokens = Tokens()
        self.changes = Changes(self.store, self.tokens, b"s" * 32)
        self.num_changed = 0
        self.ready_regions: frozenset[str] = frozenset()  # those with an edge that is ready
        self.callers = {
            "admin": caller("token-1", "operator"),
            "nobody": caller("token-2", None),
        }
        self.models = ModelBook(folder / "home", self._changed)
        zones = ZoneBook(self.store)
        self.seer = Unseeing()
        self.control = Control(
            store=self.store,
            changes=self.changes,
            observer=self.seer,
            authenticate=self._authenticate,
            denials=Denials(self.store, self.clock),
            zones=zones,
            answer_dns=ZoneAnswers(self.store, zones, lambda: self.ready_regions),
            accounts=LimitsFile(folder / "limits.yaml", Catalog.load, lambda: None),
            models=ModelManager(self.models, folders=(folder / "files",)),
            account_id=ACCOUNT,
            hosts=frozenset({"control"}),
            changed=self._changed,
            monitoring=Monitoring(
                metrics=ControlMetrics(self.seer, lambda: self.store.desired, folder, dict),
                members=lambda: self.seer.members,
                url=lambda: "http://127.0.0.1:8788",
                edge_url=lambda: "http://127.0.0.1:8787",
            ),
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
        await self.models.close()
        assert self.control.joining is not None
        self.control.joining.registry.close()
        self.store.close()

    async def _authenticate(self, token: str) -> ControlCaller | None:
        return self.callers.get(token)

    def _changed(self) -> None:
        self.num_changed += 1


def _joining(folder: Path, store: Store) -> Joining:
    authority = Authority.open(folder / "authority.pem")
    machines = Machines(store, authority)
    return Joining(
        tokens=JoinTokens(store, b"s" * 32, authority.fingerprint),
        machines=machines,
        joined=JoinedMachines(lambda: None, store.clock),
        nodes=Hosts(lambda: None, term=1, clock=store.clock, changed=lambda: None),
        registry=SqliteRegistry(folder / "registry.db"),
        own=OwnMachine(authority, machines, folder / "machine", store.clock),
    )


def new(store: Store, collection: str, **values: Any) -> Record:
    """Write a resource past the API."""
    kind: ResourceKind = BY_COLLECTION[collection]
    changes = Changes(store, Tokens(), b"s" * 32)
    return changes.create(kind, values, actor="test", idempotency_key=None).record
