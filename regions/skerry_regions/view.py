"""What a router knows at one moment: an immutable, versioned picture of nodes and links.

A registry (or a test) makes a new `View` for each change; whoever holds an old one can go on using
it. A view may be stale: routing by it costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from skerry_regions.speeds import Amount, Count, LinkSpeed, NodeSpeed

Role = Literal["prefill", "decode", "hybrid"]

LOCAL_LINK = LinkSpeed(rtt=0.0002, bandwidth=1.25e9)  # one data centre, 10 Gbit/s
UNKNOWN_LINK = LinkSpeed(rtt=0.150, bandwidth=2.5e7)  # between continents, one TCP stream


class NodeLoad(Struct, frozen=True, kw_only=True):
    """A node's queue as it last reported it. What has been computed already is not in here."""

    prefill_tokens: Amount = 0.0  # prompt tokens still to compute, waiting or running
    prefill_pairs: Amount = 0.0  # attention pairs of those tokens
    streams: Count = 0  # sequences that decode
    context_tokens: Count = 0  # tokens those sequences look at in one step
    free_tokens: Count | None = None  # KV room that no running sequence holds; None: unknown


class NodeState(Struct, frozen=True, kw_only=True):
    """One node as seen from here."""

    id: str
    region: str
    is_region: bool = False  # stands for all nodes of its region
    residency: str  # zone, such as "eu"
    role: Role
    model: str  # catalog id
    numeric_build: str  # nodes with equal builds compute equal bits
    batch_invariant: bool = True  # whether it does so in any batch, and from any cached prefix
    kv_format: str  # layout and dtype of KV blocks
    kv_bytes_per_token: float
    cache_tokens: int | None = None  # blocks beyond this many tokens displace others; None: no end
    speed: NodeSpeed
    incarnation: int = 0  # grows each time the node starts
    load: NodeLoad = NodeLoad()
    observed_at: float = 0.0  # when `load` arrived here, seconds of the router's clock
    file_bandwidth: float = 0.0  # bytes per second of the file tier; 0: none
    takes_kv: bool = True  # whether other nodes can send it blocks
    handover_lag: float = 0.0  # seconds that hand-overs to it take beyond the transfer
    draining: bool = False  # finishes what it has, takes nothing new
    suspect: bool = False  # missed heartbeats; taken only when nothing else is left

    @property
    def can_decode(self) -> bool:
        return self.role != "prefill"

    @property
    def offers_prefill(self) -> bool:
        """Whether it prefills for other nodes; every node can prefill what it decodes itself."""
        return self.role != "decode"


class View:
    """Nodes by id, and links between regions (or from an edge's region)."""

    __slots__ = ("_links", "nodes", "version")

    def __init__(
        self,
        nodes: Iterable[NodeState] = (),
        links: Mapping[tuple[str, str], LinkSpeed] | None = None,
        *,
        version: int = 0,
    ) -> None:
        self.version = version
        self.nodes: Mapping[str, NodeState] = MappingProxyType({node.id: node for node in nodes})
        self._links: Mapping[tuple[str, str], LinkSpeed] = MappingProxyType(dict(links or {}))

    def link(self, source: str, target: str) -> LinkSpeed:
        """Between two regions, in either direction; defaults when nothing is known."""
        known = self._links.get((source, target)) or self._links.get((target, source))
        return known or (LOCAL_LINK if source == target else UNKNOWN_LINK)

    def with_nodes(self, *changed: NodeState) -> View:
        """A newer view with these nodes added or replaced."""
        return self._next({**self.nodes, **{node.id: node for node in changed}}, self._links)

    def without_node(self, node_id: str) -> View:
        """A newer view without the node; without change if it is not there."""
        nodes = {id_: node for id_, node in self.nodes.items() if id_ != node_id}
        return self._next(nodes, self._links)

    def with_load(self, node_id: str, load: NodeLoad, *, observed_at: float) -> View:
        """A newer view with a fresh report. Raises KeyError for an unknown node."""
        node = self.nodes[node_id]
        return self.with_nodes(replace(node, load=load, observed_at=observed_at))

    def with_link(self, source: str, target: str, speed: LinkSpeed) -> View:
        """A newer view with a link measured anew."""
        links = {pair: s for pair, s in self._links.items() if pair != (target, source)}
        return self._next(self.nodes, {**links, (source, target): speed})

    def _next(
        self, nodes: Mapping[str, NodeState], links: Mapping[tuple[str, str], LinkSpeed]
    ) -> View:
        return View(nodes.values(), links, version=self.version + 1)
