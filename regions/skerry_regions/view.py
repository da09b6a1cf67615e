"""What a router knows: a picture of nodes and links, changed in place by what is heard of them.

A view may be stale: routing by it costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, Protocol

from msgspec import Struct

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
    load: NodeLoad = NodeLoad()
    observed_at: float = 0.0  # when `load` arrived here, seconds of the router's clock
    file_bandwidth: float = 0.0  # bytes per second of the file tier; 0: none
    takes_kv: bool = True  # whether other nodes can send it blocks
    handover_lag: float = 0.0  # seconds that hand-overs to it take beyond the transfer
    draining: bool = False  # finishes what it has, takes nothing new
    away: bool = False  # no connection to it: nothing can be sent there

    @property
    def can_decode(self) -> bool:
        return self.role != "prefill"

    @property
    def offers_prefill(self) -> bool:
        """Return whether it prefills for other nodes; every node can prefill what it decodes
        itself."""
        return self.role != "decode"


class ViewWatcher(Protocol):
    """Follows what changes in a view, at once. Must not raise."""

    def node_changed(self, node_id: str) -> None:
        """Handle a node that was added, or is another than before."""

    def node_removed(self, node_id: str) -> None:
        """Note that a node is gone."""

    def link_changed(self, source: str, target: str) -> None:
        """Take in that a link was measured again."""


class View:
    """Nodes by id, and links between regions (or from an edge's region). Changed in place.

    One edge's, of one model: what changes costs what it changes, however many nodes there are.
    """

    __slots__ = ("__weakref__", "_links", "_nodes", "_watchers", "nodes")

    def __init__(
        self,
        nodes: Iterable[NodeState] = (),
        links: Mapping[tuple[str, str], LinkSpeed] | None = None,
    ) -> None:
        self._nodes = {node.id: node for node in nodes}
        self.nodes: Mapping[str, NodeState] = MappingProxyType(self._nodes)
        self._links = {ordered(*pair): speed for pair, speed in (links or {}).items()}
        self._watchers: list[ViewWatcher] = []

    def watch(self, watcher: ViewWatcher) -> None:
        """Notify `watcher` of every change from now on."""
        self._watchers.append(watcher)

    def link(self, source: str, target: str) -> LinkSpeed:
        """Return that between two regions, in either direction; defaults when nothing is known."""
        known = self._links.get((source, target) if source <= target else (target, source))
        return known or (LOCAL_LINK if source == target else UNKNOWN_LINK)

    def put(self, *nodes: NodeState) -> None:
        """Add nodes, or replace them."""
        for node in nodes:
            if self._nodes.get(node.id) != node:
                self._nodes[node.id] = node
                for watcher in self._watchers:
                    watcher.node_changed(node.id)

    def remove(self, node_id: str) -> None:
        """Forget a node; nothing happens if it is not there."""
        if self._nodes.pop(node_id, None) is not None:
            for watcher in self._watchers:
                watcher.node_removed(node_id)

    def put_link(self, source: str, target: str, speed: LinkSpeed) -> None:
        """Take in a link that was measured again."""
        if self._links.get(ordered(source, target)) != speed:
            self._links[ordered(source, target)] = speed
            for watcher in self._watchers:
                watcher.link_changed(source, target)


def ordered(a: str, b: str) -> tuple[str, str]:
    """Return both in order: a link is the same in either direction."""
    return (a, b) if a <= b else (b, a)
