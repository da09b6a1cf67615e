"""What a placement costs: one number, in seconds, and the terms it is the sum of.

A placement is (prefill node, decode node, path). Its cost is what the request waits, plus what it
makes others wait:

    network    edge to prefill node, and back from the decode node
    queue      prefill work that is already waiting at the prefill node
    fetch      copying cached blocks to the prefill node (from its file tier, or from a peer once
               the step that runs there is over), beyond what the queue hides
    prefill    computing what is not cached
    handover   KV that reaches the decode node after the last prefill step, and the way there
    lag        what hand-overs to the decode node took beyond that so far
    step_wait  joining the decode node's batch: half of a running step
    decode     the expected output, at the pace of the decode node with this request on it; as all
               seconds of decoding, by what they are worth (`RouterConfig.decode_weight`)
    stall      harm to running streams: those on the prefill node get slower steps while it
               prefills, those on the decode node from then on, and what no longer fits is
               recomputed; and to this one, while the decode node still prefills for others
    behind     harm to requests that will queue behind this one while the node is busy: a fast node
               gets more of them
    evict      harm to later requests: the blocks that this one displaces from full caches, at the
               price of computing them again, times how often a stored token is found again; not on
               a node that only decodes: on one of those KV must go in any case
    affinity   what it is worth that a session's prompts stay on one node

Geography, load, warmth, affinity, hand-over and "prefill on the decode node" are such terms, not
rules: there is no threshold below. A hot prefix spreads as soon as waiting for its holder costs
more than computing or fetching it elsewhere.

Pure: view, time and randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry_regions.routing.block_index import NOTHING_CACHED, CachedPrefix
from skerry_regions.routing.bookings import CurrentLoad
from skerry_regions.routing.placement import Demand, Fetch, RouterConfig
from skerry_regions.routing.sides import DecodeSide, Pair, PrefillSide, Surroundings
from skerry_regions.view import NodeState, View


class Costs:
    """Prices one demand against one view."""

    def __init__(
        self, config: RouterConfig, view: View, demand: Demand, surroundings: Surroundings
    ) -> None:
        self.demand = demand
        self._config, self._view, self._around = config, view, surroundings

    def prefill(self, node: NodeState, load: CurrentLoad) -> PrefillSide:
        """Return the cheapest way to prefill on `node`."""
        options = [
            self._prefill_after(node, load, fetch, blocks, transfer)
            for fetch, blocks, transfer in self._sources(node)
        ]
        return min(options, key=lambda option: option.seconds)

    def decode(self, node: NodeState, load: CurrentLoad) -> DecodeSide:
        """Price decoding on `node`."""
        demand = self.demand
        context = load.context + demand.prompt_tokens + demand.output_tokens / 2
        pace = node.speed.step_seconds(load.streams + 1, context)
        pace_before = node.speed.step_seconds(load.streams, load.context) if load.streams else 0.0
        stall = load.streams * demand.output_tokens * (pace - pace_before)
        if load.free_tokens is not None:
            needed = demand.prompt_tokens + demand.output_tokens
            preempted = max(0.0, needed - load.free_tokens)
            stall += node.speed.prefill_seconds(int(preempted), 0)
        return DecodeSide(
            node=node,
            cached_tokens=self._usable(self._cached(node).resident),
            network=self._view.link(demand.origin, node.region).rtt / 2,
            backlog=load.queue_seconds,
            step_wait=pace_before / 2,
            decode=self._config.decode_weight * demand.output_tokens * pace,
            stall=self._config.decode_weight * stall,
        )

    def pair(self, prefill: PrefillSide, decode: DecodeSide) -> Pair:
        """Return both together. The caller has checked that KV may go from one to the other."""
        if prefill.node.id == decode.node.id:
            return Pair(prefill, decode, self.demand.numeric_builds)
        missing = self.demand.prompt_tokens - decode.cached_tokens
        handover = self._handover(prefill, decode, missing)
        lag = decode.node.handover_lag
        arrives = prefill.queue + prefill.fetching + prefill.compute + handover + lag
        return Pair(
            prefill,
            decode,
            self.demand.numeric_builds,
            handover=handover,
            lag=lag,
            stall=self._config.decode_weight * max(0.0, decode.backlog - arrives),
            evict=self._evicted(decode.node, missing) if decode.node.offers_prefill else 0.0,
        )

    def least_handover(
        self, prefills: Sequence[PrefillSide], decodes: Sequence[DecodeSide]
    ) -> float:
        """Return the seconds that any hand-over between two of these nodes takes at least."""
        sources = {side.node.region for side in prefills}
        targets = {side.node.region for side in decodes}
        rtts = [self._view.link(source, target).rtt for source in sources for target in targets]
        return min(rtts, default=0.0) / 2

    def _prefill_after(
        self, node: NodeState, load: CurrentLoad, fetch: Fetch | None, blocks: int, transfer: float
    ) -> PrefillSide:
        """Prefill with `blocks` cached, once `transfer` seconds have brought those of `fetch`."""
        cached_tokens = self._usable(blocks)
        compute = node.speed.prefill_seconds(
            self.demand.prompt_tokens - cached_tokens,
            cached_tokens,
            streams=load.streams,
            context=load.context,
        )
        # Streams go on in the same steps: what they lose is the prompt's own part of them.
        harm = node.speed.prompt_seconds(self.demand.prompt_tokens - cached_tokens, cached_tokens)
        # Whoever comes while the node is busy waits for this request too.
        arrivals = self._around.arrivals_per_node * self._share(node)
        followers = arrivals * (load.queue_seconds + compute)
        new_tokens = self.demand.prompt_tokens - self._usable(self._cached(node).resident)
        return PrefillSide(
            node=node,
            fetch=fetch,
            cached_tokens=cached_tokens,
            network=self._view.link(self.demand.origin, node.region).rtt / 2,
            queue=load.queue_seconds,
            fetching=max(0.0, transfer - load.queue_seconds),
            compute=compute,
            stall=self._config.decode_weight * load.streams * harm,
            behind=self._config.behind_weight * followers * compute,
            evict=self._evicted(node, new_tokens),
            affinity=self._away_from_home(node),
        )

    def _share(self, node: NodeState) -> float:
        """Return how many times as much comes to a node as to the mean one: by its speed."""
        mean = node.speed.per_token * self._around.mean_speed
        return 1.0 / mean if mean > 0.0 else 1.0

    def _away_from_home(self, node: NodeState) -> float:
        at_home = self._around.home in (None, node.id)
        return 0.0 if at_home else self._config.affinity_seconds

    def _sources(self, node: NodeState) -> list[tuple[Fetch | None, int, float]]:
        """Return the ways to have blocks on `node`: (fetch, blocks then cached, seconds of
        transfer)."""
        own = self._cached(node)
        block_bytes = node.kv_bytes_per_token * self._config.block_size
        options: list[tuple[Fetch | None, int, float]] = [(None, own.resident, 0.0)]
        if own.in_file and node.file_bandwidth > 0:
            fetch = Fetch(source=node.id, first=own.resident, last=own.blocks)
            options.append((fetch, own.blocks, own.in_file * block_bytes / node.file_bandwidth))
        for peer, held in self._around.peers:
            if held <= own.resident or not _may_fetch(peer, node, self.demand):
                continue
            link = self._view.link(peer.region, node.region)
            seconds = running_step(peer) / 2 + link.transfer_seconds(
                (held - own.resident) * block_bytes
            )
            options.append((Fetch(source=peer.id, first=own.resident, last=held), held, seconds))
        return options

    def _handover(self, prefill: PrefillSide, decode: DecodeSide, missing: int) -> float:
        """Return seconds from the last prefill step until the decode node has all blocks."""
        link = self._view.link(prefill.node.region, decode.node.region)
        per_token = prefill.node.kv_bytes_per_token
        chunk = min(
            prefill.node.speed.chunk_tokens,
            self.demand.prompt_tokens - prefill.cached_tokens,
            missing,
        )
        # Blocks are pushed as they are sealed: what the link could not keep up with is late, and
        # at least the last chunk.
        hidden = prefill.queue + prefill.fetching + prefill.compute
        behind = missing * per_token / link.bandwidth - hidden
        return link.rtt / 2 + max(behind, chunk * per_token / link.bandwidth)

    def _evicted(self, node: NodeState, new_tokens: int) -> float:
        """Price storing `new_tokens` on a node: computing again what must go for them."""
        if node.cache_tokens is None:
            return 0.0
        room = max(node.cache_tokens - self._around.stored_tokens.get(node.id, 0), 0)
        displaced = max(new_tokens - room, 0)
        again = displaced * node.speed.per_token * self._around.reuse
        return self._config.evict_weight * again

    def _cached(self, node: NodeState) -> CachedPrefix:
        return self._around.cached.get(node.id, NOTHING_CACHED)

    def _usable(self, blocks: int) -> int:
        """Return tokens that need no computing; the last one always runs."""
        return min(blocks * self._config.block_size, self.demand.prompt_tokens - 1)


def may_copy(source: NodeState, target: NodeState, demand: Demand) -> bool:
    """Return whether KV may go from `source` to `target`: zone kept, builds alike or waived."""
    if source.model != target.model or source.id in demand.exclude:
        return False
    if not target.takes_kv:
        return False
    if demand.residency not in (None, source.residency):
        return False
    return _same_build(source, target) or demand.mixed_builds


def _may_fetch(source: NodeState, target: NodeState, demand: Demand) -> bool:
    """Return what `may_copy` does, of one build whatever the demand: a fetched block is a cache
    hit, and one of another build has another name."""
    return may_copy(source, target, demand) and _same_build(source, target)


def _same_build(a: NodeState, b: NodeState) -> bool:
    return (a.numeric_build, a.kv_format) == (b.numeric_build, b.kv_format)


def running_step(node: NodeState) -> float:
    """Return seconds of a step as the node makes them now: a chunk of prefill beside its
    streams."""
    load, speed = node.load, node.speed
    if not load.streams:
        chunk = min(load.prefill_tokens, speed.chunk_tokens)
        return speed.base + speed.per_token * chunk if chunk else 0.0
    room = speed.room_seconds(load.streams, load.context_tokens)
    return speed.step_seconds(load.streams, load.context_tokens) + min(
        speed.per_token * load.prefill_tokens, room
    )
