"""The two sides of a placement and what lies between them, in seconds; `costs` fills them in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.placement import Fetch, Placement
from skerry_regions.view import NodeState


class Surroundings(Struct, frozen=True, kw_only=True):
    """What matters for the cost besides view and demand."""

    cached: Mapping[str, CachedPrefix]  # of the prompt, expected blocks included
    peers: Sequence[tuple[NodeState, int]]  # nodes to fetch from: blocks that they have in memory
    stored_tokens: Mapping[str, int]  # by node: in its cache
    arrivals_per_node: float  # requests per second
    mean_speed: float  # prompt tokens per second of the nodes that share them; 0: there is none
    reuse: float  # times that a stored token is found again
    home: str | None = None  # the node of the request's session


class PrefillSide(Struct):
    """Terms of prefilling on one node, whatever the decode node."""

    node: NodeState
    fetch: Fetch | None
    cached_tokens: int
    network: float  # edge to here, one way
    queue: float
    fetching: float
    compute: float
    stall: float
    behind: float
    evict: float
    affinity: float

    @property
    def seconds(self) -> float:
        wait = self.network + self.queue + self.fetching + self.compute
        return wait + self.stall + self.behind + self.evict + self.affinity


class DecodeSide(Struct):
    """Terms of decoding on one node, whatever the prefill node."""

    node: NodeState
    cached_tokens: int
    network: float  # from here to the edge, one way
    backlog: float  # seconds of prefill that wait here
    step_wait: float
    decode: float
    stall: float

    @property
    def seconds(self) -> float:
        return self.network + self.step_wait + self.decode + self.stall


class Pair(Struct):
    """Both sides, and what lies between them where they are two nodes."""

    prefill: PrefillSide
    decode: DecodeSide
    builds_before: frozenset[str]  # that made the output so far
    handover: float = 0.0
    lag: float = 0.0
    stall: float = 0.0  # of this request on the decode node
    evict: float = 0.0  # likewise

    @property
    def same_build(self) -> bool:
        """Return whether the output goes on with the build that made it so far."""
        return lineage(self.builds_before, self.prefill.node, self.decode.node)[0]

    @property
    def seconds(self) -> float:
        between = self.handover + self.lag + self.stall + self.evict
        return self.prefill.seconds + self.decode.seconds + between

    def placement(self) -> Placement:
        prefill, decode = self.prefill, self.decode
        same_build, is_exact, is_mixed = lineage(self.builds_before, prefill.node, decode.node)
        terms = {
            "network": prefill.network + decode.network,
            "queue": prefill.queue,
            "fetch": prefill.fetching,
            "prefill": prefill.compute,
            "handover": self.handover,
            "lag": self.lag,
            "step_wait": decode.step_wait,
            "decode": decode.decode,
            "stall": prefill.stall + decode.stall + self.stall,
            "behind": prefill.behind,
            "evict": prefill.evict + self.evict,
            "affinity": prefill.affinity,
        }
        return Placement(
            prefill=prefill.node.id,
            decode=decode.node.id,
            fetch=prefill.fetch,
            cached_tokens=prefill.cached_tokens,
            terms=MappingProxyType(terms),
            seconds=sum(terms.values()),
            same_build=same_build,
            is_exact=is_exact,
            is_mixed=is_mixed,
        )


def lineage(
    before: frozenset[str], prefill: NodeState, decode: NodeState
) -> tuple[bool, bool, bool]:
    """Return whether output that `before` made goes on with that build, whether it does so with the
    bits of an undisturbed run, and whether KV goes to a node of another build."""
    if not before:
        return True, True, prefill.numeric_build != decode.numeric_build
    builds = {prefill.numeric_build, decode.numeric_build}
    same_build = len(builds | before) == 1
    is_invariant = prefill.batch_invariant and decode.batch_invariant
    return same_build, same_build and is_invariant, len(builds) > 1


def prompt_speed(node: NodeState) -> float:
    """Return how many prompt tokens a node computes in a second; 0 where that is not known.

    In whole parts of 1,024, so that sums of them are exact in whatever order they are made.
    """
    per_token = node.speed.per_token
    return math.floor(1024.0 / per_token) / 1024.0 if per_token > 0.0 else 0.0
