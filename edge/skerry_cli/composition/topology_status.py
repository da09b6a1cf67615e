"""What `skerry status` says of a topology: what its control plane runs, and what goes wrong."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from itertools import count

import msgspec

from skerry_cli.home.control import EdgeStatus, NodeStatus, Status
from skerry_cli.home.parts import sentence
from skerry_cli.home.state import Home
from skerry_regions.address import Address
from skerry_regions.control.desired.views import NodeView
from skerry_regions.control.planning.launcher import EdgeSettings, NodeSettings
from skerry_regions.control.planning.plan import Group
from skerry_regions.control.reconcile.failures import Failures
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.models.problems import LeftOut
from skerry_regions.process.pages import NoPage, page_of
from skerry_regions.registry import Member, Registry, RegistryUnavailable
from skerry_regions.topology.spec import Topology

STILL = "edges use the nodes of the topology"
ASK_SECONDS = 1.0  # for a node to say how it is


class NodeAnswer(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    node: Member
    edges: list[str]  # that are connected to it


class TopologyStatus:
    """Of what a reconciler runs. Lives on its event loop."""

    def __init__(
        self,
        topology: Topology,
        home: Home,
        reconciler: Reconciler,
        registry: Registry,
        left_out: Sequence[LeftOut],
    ) -> None:
        """What the file names comes first, in its order."""
        pools = [f"{pool.region}-{pool.name}" for pool in topology.pools]
        self._edges = {edge.name: edge.url for edge in topology.edges}
        self._order = [*pools, *self._edges]
        self._home = home
        self._reconciler = reconciler
        self._registry = registry
        self._left_out = left_out
        self._urls: dict[str, str] = {}  # by edge node, where one was last

    async def __call__(self) -> Status:
        """Return what runs; what nodes say of themselves needs no registry."""
        views = sorted(self._reconciler.nodes(), key=lambda view: view.id)
        nodes = [view for view in views if view.kind == "node"]
        answers, away = await asyncio.gather(
            ask_nodes({node.id: node.control for node in nodes if node.control}),
            self.registry_trouble(),
        )
        wanted = self._reconciler.wanted()
        groups = {} if wanted is None else wanted.groups
        edges = self.edges()
        notes = [sentence(each) for each in self._left_out]
        notes += troubles(self._reconciler.failures, {view.id for view in views}, self._home)
        notes += [away, *without_edge(nodes, answers)]
        return Status(
            url=next((edge.url for edge in edges), ""),
            edges=edges,
            nodes=[node_status(view, answers.get(view.id)) for view in self._sorted(nodes)]
            + [*missing_nodes(groups, nodes)],
            notes=[note for note in notes if note],
            left_out=[*self._left_out],
            includes_control=True,
        )

    def edges(self) -> list[EdgeStatus]:
        """Return one process of each edge node: that which serves, if there are two for a while."""
        views = [view for view in self._reconciler.nodes() if view.kind == "edge"]
        found: dict[str, EdgeStatus] = {}
        for view in self._sorted(sorted(views, key=lambda view: view.state != "ready")):
            if view.state != "draining" and view.owner not in found:
                url = self._urls[view.owner] = self._edges.get(view.owner) or view.address
                found[view.owner] = EdgeStatus(view.id, view.pid, url, view.region)
        wanted = self._reconciler.wanted()
        for id, group in {} if wanted is None else wanted.groups.items():
            if isinstance(group.settings, EdgeSettings) and group.replicas and id not in found:
                found[id] = EdgeStatus(f"{id}-0", 0, self._urls.get(id, ""), group.settings.region)
        return sorted(found.values(), key=lambda edge: self._place(edge.id.rpartition("-")[0]))

    async def registry_trouble(self) -> str:
        """Return what a person should know of the registry; nothing while all is well."""
        views = self._reconciler.nodes()
        ready = [view.id for view in views if (view.kind, view.state) == ("node", "ready")]
        return await asyncio.to_thread(registry_trouble, self._registry, ready)

    def _sorted(self, views: Sequence[NodeView]) -> list[NodeView]:
        return sorted(views, key=lambda view: self._place(view.owner))

    def _place(self, owner: str) -> int:
        return self._order.index(owner) if owner in self._order else len(self._order)


def node_status(view: NodeView, answer: NodeAnswer | None) -> NodeStatus:
    """Return a node's status: the control plane knows whether it lives, the node itself what it
    does."""
    known = answer.node if answer is not None and answer.node.pid == view.pid else None
    draining = view.state == "ready" and known is not None and known.state == "draining"
    return NodeStatus(
        id=view.id,
        pid=view.pid,
        role=view.role or "",
        region=view.region,
        model=view.model,
        state="draining" if draining else view.state,
        streams=known.streams if known is not None else view.streams,
        control=view.control,
    )


def missing_nodes(groups: Mapping[str, Group], nodes: Sequence[NodeView]) -> list[NodeStatus]:
    """Return those that are wanted and do not run: they ended, and are started again after a
    pause."""
    found = []
    ids = {node.id for node in nodes}
    for group in groups.values():
        if not isinstance(group.settings, NodeSettings) or group.blocked:
            continue
        num_missing = group.replicas - sum(node.owner == group.id for node in nodes)
        free = (id for number in count() if (id := f"{group.id}-{number}") not in ids)
        found += [
            NodeStatus(
                id=next(free),
                pid=0,
                role=group.settings.role,
                region=group.settings.region,
                model=group.settings.model,
                state="failed",
                streams=0,
            )
            for _ in range(num_missing)
        ]
    return found


def troubles(failures: Failures, running: set[str], home: Home) -> list[str]:
    """Return what a person should know of processes that ended by themselves. `running` are the
    ids of those that run."""
    found = []
    for id, ends in failures.ends.items():
        restarts = ends.count - (id not in running)
        times = {0: "ended", 1: "restarted once"}.get(restarts, f"restarted {restarts} times")
        what = f"{id}: {times}{_ending(ends.status)}"
        if id.rpartition("-")[0] in failures.failing:
            what += ", in a crash loop"
        found.append(f"{what}; see {home.logs / f'{id}.log'}")
    return found


def _ending(status: int | None) -> str:
    """Return how a process ended last, in words; nothing where that is not known."""
    if status is None:
        return ""
    if status >= 0:
        return f", last with status {status}"
    try:
        return f", last by {signal.Signals(-status).name}"
    except ValueError:
        return f", last by signal {-status}"


def without_edge(nodes: Sequence[NodeView], answers: Mapping[str, NodeAnswer]) -> list[str]:
    """Return a note on each node that runs well and that no edge has a connection to."""
    return [
        f"{node.id} serves no edge: it is ready, and none has reached it; see the log of an edge"
        for node in nodes
        if node.state == "ready" and node.id in answers and not answers[node.id].edges
    ]


def registry_trouble(registry: Registry, ready: list[str]) -> str:
    """Return what a person should know of the registry, where these nodes should be. Blocks."""
    try:
        known = {member.id for member in registry.members()}
    except RegistryUnavailable as error:
        return f"the registry is away: {error}; {STILL}"
    unknown = ", ".join(id for id in ready if id not in known)
    return f"the registry lacks {unknown} (is its disk full?); {STILL}" if unknown else ""


async def ask_nodes(controls: Mapping[str, str]) -> dict[str, NodeAnswer]:
    """Return what nodes say at the addresses of their control APIs, of those that answer in
    time."""
    answers = await asyncio.gather(*map(_ask, controls.values()))
    return {id: answer for id, answer in zip(controls, answers, strict=True) if answer is not None}


async def _ask(control: str) -> NodeAnswer | None:
    try:
        body = await page_of(Address.parse(control), "/status", seconds=ASK_SECONDS)
        return msgspec.json.decode(body, type=NodeAnswer)
    except (NoPage, msgspec.DecodeError):
        return None
