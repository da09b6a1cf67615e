"""What a region's edges report to those of other regions: how its nodes do, in one message per
model.

Another region is priced by its newest summary as if it were one node: the best of its nodes by
load, with the blocks that any of them holds. Its own edge, which knows better, then chooses among
them. So an edge follows its own region's nodes one by one, and of every other region only its
edges, however many nodes stand there.

The load is whole, so that a lost summary costs nothing; of one edge and model the newest counts, by
(incarnation, seq). Whoever is not heard of any more keeps its last word until its edge is gone.
Names of blocks are sent as changes, by one edge of the region (`region_names`).

Pure: views, members and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from skerry_regions.registry import Member, NumericBuild
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.bookings import CurrentLoad
from skerry_regions.routing.region_names import KnownNames, NameNews
from skerry_regions.speeds import Count, NodeSpeed
from skerry_regions.view import NodeLoad, NodeState

Coefficient = Annotated[float, Meta(ge=0.0, le=1e6)]  # seconds per unit
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
MIN_PER_PAIR = 1e-15  # seconds; a queue is sent in attended pairs, which must cost something
MAX_SUMMARIES = 65_536
NOTHING_STORED: Mapping[str, int] = MappingProxyType({})


class RegionSummary(Struct, frozen=True, kw_only=True):
    """The nodes of a region that serve one model. With `num_nodes` 0 the rest says nothing."""

    incarnation: Count  # of the edge that sends it
    seq: Count
    num_nodes: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # that take streams
    residual: tuple[Seconds, Seconds, Seconds] = (0.0, 0.0, 0.0)
    """Prefill work that waits at a node: the 10 %, 50 % and 90 % quantiles over nodes."""
    streams: Count = 0  # of the node with the least work, as all below
    context_tokens: Count = 0
    free_tokens: Count | None = None
    cache_room: Count | None = None  # tokens that displace no cached ones
    speed: tuple[Coefficient, Coefficient, Coefficient, Coefficient, Coefficient] | None = None
    """As in `NodeSpeed`: per step, per token, per pair, per stream, per token of context. None
    while no one has measured it."""
    chunk_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 512
    numeric_build: NumericBuild = ""  # "": its nodes are of several
    batch_invariant: bool = True  # all of its nodes
    names: NameNews | None = None  # of blocks that its nodes hold, from the edge that sends them

    def as_node(self, edge: Member, model: str, at: float, unmeasured: NodeSpeed) -> NodeState:
        """Return the region as one node, sent at `at` of the router's clock; `unmeasured` is its
        speed as long as it knows none itself."""
        speed = self._speed(unmeasured)
        return NodeState(
            id=edge.id,
            region=edge.region,
            is_region=True,
            residency=edge.residency,
            role="decode",  # it prefills what it decodes, and nothing for others
            model=model,
            numeric_build=self.numeric_build,
            batch_invariant=self.batch_invariant,
            kv_format="",
            kv_bytes_per_token=0.0,
            cache_tokens=self.cache_room,  # of what is stored we know only that it is not room
            speed=speed,
            load=NodeLoad(
                prefill_pairs=self.residual[0] / speed.per_pair,
                streams=self.streams,
                context_tokens=self.context_tokens,
                free_tokens=self.free_tokens,
            ),
            observed_at=at,
            takes_kv=False,
        )

    def _speed(self, unmeasured: NodeSpeed) -> NodeSpeed:
        if self.speed is None:
            return unmeasured
        base, per_token, per_pair, per_stream, per_context = self.speed
        return NodeSpeed(
            base=base,
            per_token=per_token,
            per_pair=max(per_pair, MIN_PER_PAIR),
            per_stream=per_stream,
            per_context=per_context,
            chunk_tokens=self.chunk_tokens,
        )


def summarise(
    nodes: Collection[tuple[NodeState, CurrentLoad]],
    *,
    names: NameNews | None = None,
    incarnation: int,
    seq: int,
    stored_tokens: Mapping[str, int] = NOTHING_STORED,
    is_measured: bool = True,
) -> RegionSummary:
    """Summarise the nodes of one region that serve one model, with their loads now.

    `names` are news of the blocks that they hold, `stored_tokens` how many each holds, and
    `is_measured` is whether their speeds are more than a guess.
    """
    taking = sorted(
        ((node, load) for node, load in nodes if node.can_decode and not node.draining),
        key=lambda pair: pair[1].queue_seconds,
    )
    if not taking:
        return RegionSummary(incarnation=incarnation, seq=seq, names=names)
    node, load = taking[0]
    room = node.cache_tokens
    if room is not None:
        room = max(room - stored_tokens.get(node.id, 0), 0)
    builds = {each.numeric_build for each, _ in taking}
    queues = [each.queue_seconds for _, each in taking]
    return RegionSummary(
        incarnation=incarnation,
        seq=seq,
        num_nodes=len(taking),
        residual=(_quantile(queues, 0.1), _quantile(queues, 0.5), _quantile(queues, 0.9)),
        streams=load.streams,
        context_tokens=int(load.context),
        free_tokens=None if load.free_tokens is None else max(int(load.free_tokens), 0),
        cache_room=room,
        speed=node.speed.coefficients if is_measured else None,
        chunk_tokens=node.speed.chunk_tokens,
        numeric_build=builds.pop() if len(builds) == 1 else "",
        batch_invariant=all(each.batch_invariant for each, _ in taking),
        names=names,
    )


class Summaries:
    """The newest summary of every edge of another region, by model. As big as the cluster."""

    def __init__(self) -> None:
        self._edges: dict[str, Member] = {}
        self._ages: dict[tuple[str, str], tuple[int, int]] = {}  # of the newest, by edge and model
        self._names: dict[tuple[str, str], tuple[str, KnownNames]] = {}
        """By region and model: the edge that sends them, and what it sent."""

    def know(self, edges: Mapping[str, Member]) -> set[str]:
        """Set the edges there are now; what others reported is forgotten. Returns those that are
        gone."""
        gone = self._edges.keys() - edges.keys()
        self._edges = dict(edges)
        self._ages = {key: age for key, age in self._ages.items() if key[0] in edges}
        self._names = {key: told for key, told in self._names.items() if told[0] in edges}
        return gone

    def take(
        self, edge: str, model: str, summary: RegionSummary, now: float, unmeasured: NodeSpeed
    ) -> NodeState | None:
        """Take in what an edge reports: the region as one node. None for older ones, doubled ones
        and strangers', which do no harm."""
        member, age = self._edges.get(edge), (summary.incarnation, summary.seq)
        known = self._ages.get((edge, model))
        if member is None or (known is not None and known >= age):
            return None
        if known is None and len(self._ages) >= MAX_SUMMARIES:
            return None
        self._ages[edge, model] = age
        return summary.as_node(member, model, now, unmeasured)

    def learn_names(self, edge: str, model: str, news: NameNews) -> bool:
        """Take in which blocks an edge's region holds; return False when the edge should be called
        for all of them."""
        if (member := self._edges.get(edge)) is None:
            return True
        key = member.region, model
        if key not in self._names or self._names[key][0] != edge:  # another edge sends them now
            if len(self._names) >= MAX_SUMMARIES:
                return True
            self._names[key] = edge, KnownNames()
        return self._names[key][1].take(news)

    def cached(self, model: str, digests: Sequence[bytes]) -> dict[str, CachedPrefix]:
        """Return how much of a prompt's blocks each region is believed to hold, by edge."""
        by_region = {
            region: names.leading(digests)
            for (region, of), (_, names) in self._names.items()
            if of == model
        }
        return {
            edge: CachedPrefix(blocks=blocks, resident=blocks)
            for edge, member in self._edges.items()
            if (blocks := by_region.get(member.region, 0))
        }


def _quantile(ascending: Sequence[float], share: float) -> float:
    """Return the quantile by nearest rank."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]
