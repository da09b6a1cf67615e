"""A control plane's listener for machines, over real TLS, and machines that joined it."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.clock import Clock
from tests.edge.serving import serving
from tests.regions.control.support import MODEL, new

from skerry_edge.limits import Limits
from skerry_regions.control.api.machine_api import create_machine_app
from skerry_regions.control.api.machine_calls import Admit, MachineControl
from skerry_regions.control.desired.store import Store
from skerry_regions.control.machines.authority import Authority, ListenerTLS
from skerry_regions.control.machines.book import Machines
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.control.machines.joined import JoinedMachines, Wanted
from skerry_regions.control.machines.joining import OwnMachine
from skerry_regions.control.machines.link import ControlLink, join
from skerry_regions.control.machines.messages import Announcement, Credentials, Orders
from skerry_regions.control.planning.plan import Group
from skerry_regions.control.planning.wanted import ModelState, wanted
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.registry import Member, Registry

CLUSTER_KEY = b"k" * 32
POOL = "fra-decode"


@dataclass
class Platform:
    """The parts of a control plane that machines meet."""

    folder: Path
    store: Store
    tokens: JoinTokens
    authority: Authority
    machines: Machines
    registry: Registry
    clock: Clock
    url: str = ""
    groups: Mapping[str, Group] | None = field(default_factory=dict[str, Group])
    joined_machines: JoinedMachines = field(init=False)
    hosts: Hosts = field(init=False)
    own: OwnMachine = field(init=False)

    def __post_init__(self) -> None:
        self.joined_machines = JoinedMachines(self.wanted, self.clock)
        self.own = OwnMachine(self.authority, self.machines, self.folder / "own", self.clock)
        self.own.look()
        self.hosts = Hosts(self.wanted, term=1, clock=self.clock, changed=lambda: None)

    def token(self, **values: Any) -> str:
        made = self.tokens.create(values or {"pool": POOL}, actor="test", idempotency_key=None)
        assert isinstance(made.secret, str)
        return made.secret

    def joined(self, name: str, *, pool: str = POOL) -> ControlLink:
        """A machine of this name's folder that joins a pool."""
        folder = self.folder / name
        join(folder, self.url, self.token(pool=pool), kind="node", clock=self.clock)
        return ControlLink(folder, clock=self.clock)

    def look(self) -> None:
        """As a reconciler: what is wanted now."""
        self.groups = wanted(self.store.desired, lambda name: ModelState(id=name))

    def wanted(self) -> Wanted | None:
        return None if self.groups is None else Wanted(self.store.desired, self.groups)


@contextmanager
def platform(
    folder: Path,
    *,
    registry: Registry | None = None,
    admit: Admit | None = None,
    hosts: frozenset[str] = frozenset(),
) -> Generator[Platform]:
    """A region `fra` with a pool `decode`, and its listener."""
    clock = Clock(time.time())  # TLS looks at the hour itself
    store = Store(folder / "control.db", clock=clock)
    new(store, "regions", name="fra", iata="FRA", residency="eu")
    new(store, "pools", name="decode", region="fra", role="decode", model=MODEL, replicas=0)
    authority = Authority.open(folder / "authority.pem", clock)
    machines = Machines(store, authority)
    made = Platform(
        folder=folder,
        store=store,
        tokens=JoinTokens(store, b"s" * 32, authority.fingerprint),
        authority=authority,
        machines=machines,
        registry=registry or SqliteRegistry(folder / "registry.db"),
        clock=clock,
    )
    made.look()
    control = MachineControl(
        store=store,
        authority=authority,
        machines=machines,
        joined=made.joined_machines,
        nodes=made.hosts,
        registry=made.registry,
        cluster_key=CLUSTER_KEY,
        credentials=lambda: Credentials(
            secret=b"r" * 32, digest="1", tokens=b"{}", issuers=b"issuers: []"
        ),
        revocations=lambda: made.own.revocations,
        admit=admit,
        hosts=hosts,
    )
    context = ListenerTLS(authority).context  # clients go by the hour itself
    try:
        with serving(
            create_machine_app(control), Limits(drain_seconds=1), ssl_context=context
        ) as port:
            made.url = f"https://127.0.0.1:{port}"
            yield made
    finally:
        made.registry.close()
        store.close()


def describe(link: ControlLink, **values: Any) -> Member:
    return Member(
        id=link.machine,
        kind="edge" if link.kind == "edge" else "node",
        region="fra",
        state="ready",
        **values,
    )


def announce(link: ControlLink, *, fingerprint: str = "", **values: Any) -> Orders:
    told = Announcement(
        member=replace(describe(link), **values), lease_seconds=3.0, fingerprint=fingerprint
    )
    return link.call("PUT", "/member", Orders, told)
