"""Routing rules that need no page: their formulas as published, over what a `Fleet` sees.

Sources are named at each rule (read in 2026); larger ones have modules of their own.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from bench.routing.sim.fleet import Fleet
from skerry_regions.routing.fast.compiled import Floats, Int64s
from skerry_regions.twin.kernel import state
from skerry_regions.twin.run import Choice

NOT_YET: Choice = (-1, -1, -1, 0, 0)
LOCAL_PREFILL = 1000  # uncached tokens up to which Dynamo prefills on a decode node


class Rule:
    """Picks the node that prefills; the one that decodes is the same where it can be.

    `splits`: it may decode on another hybrid node, the one with fewest requests, and prefill short
    prompts on a node for decoding, as Dynamo's conditional disaggregation does.
    """

    def __init__(self, fleet: Fleet, splits: bool) -> None:
        self.fleet, self._splits = fleet, splits

    def place(self, number: int) -> Choice:
        """See `TwinRun.run`."""
        fleet = self.fleet
        fleet.look(number)
        prefill = self.pick()
        if prefill is None:
            return NOT_YET
        decode = prefill
        if not fleet.is_hybrid or self._splits:
            decode = self.pick_decode(prefill)
        is_short = fleet.prompt - fleet.cached(decode) <= LOCAL_PREFILL
        if self._splits and not fleet.is_hybrid and is_short:
            prefill = decode
        cached = fleet.cached(prefill)
        fleet.sent.add(number, prefill, decode, fleet.prompt - cached, fleet.now)
        self.note(prefill, decode)
        return prefill, decode, *self.fetch(prefill), cached

    def pick(self) -> int | None:
        """The node that prefills; None where the request is to wait."""
        raise NotImplementedError

    def pick_decode(self, prefill: int) -> int:
        """The node that decodes: of fewest requests, rather the same one."""
        costs = self.fleet.sent.decoding()[self.fleet.decoders] * 2.0
        return self.fleet.least(self.fleet.decoders, costs - (self.fleet.decoders == prefill))

    def fetch(self, prefill: int) -> tuple[int, int]:
        """A node to fetch the prefix from, and how many blocks; none."""
        return -1, 0

    def note(self, prefill: int, decode: int) -> None:
        """Remember a choice."""

    def fewest(self, nodes: Int64s) -> int:
        """Of these the one with fewest requests."""
        return self.fleet.least(nodes, self.fleet.sent.active()[nodes])


class RoundRobin(Rule):
    _turn = 0

    def pick(self) -> int:
        self._turn += 1
        return int(self.fleet.prefills[self._turn % len(self.fleet.prefills)])


class LeastRequests(Rule):
    def pick(self) -> int:
        return self.fewest(self.fleet.prefills)


class PowerOfTwo(Rule):
    """Mitzenmacher 2001: the better of two random nodes."""

    def pick(self) -> int:
        nodes = self.fleet.prefills
        return self.fewest(np.array(self.fleet.rng.sample(nodes.tolist(), min(2, len(nodes)))))


class LeastTokens(Rule):
    """Fewest uncached tokens of prompts that wait."""

    def pick(self) -> int:
        nodes = self.fleet.prefills
        return self.fleet.least(nodes, self.fleet.sent.new_tokens()[nodes])


class LongestPrefix(Rule):
    """The best match, ties by fewest requests."""

    def pick(self) -> int:
        nodes, held = self.fleet.prefills, self.fleet.held[self.fleet.prefills]
        return self.fewest(nodes[held == held.max()])


class SGLangCacheAware(Rule):
    """SMG cache_aware.rs: imbalanced (max-min > 32 and max > 1.1 min) → least loaded; else a match
    above half of the prompt → best match; else the smallest tree."""

    def pick(self) -> int:
        fleet, nodes = self.fleet, self.fleet.prefills
        loads = fleet.sent.active()[nodes]
        if loads.max() - loads.min() > 32 and loads.max() > 1.1 * loads.min():
            return self.fewest(nodes)
        held = fleet.held[nodes]
        if held.max() > 0.5 * max(fleet.blocks, 1):
            return self.fewest(nodes[held == held.max()])
        return fleet.least(nodes, np.asarray(fleet.run.built.world.index.stored)[nodes])


class AIBrix(Rule):
    """AIBrix prefix_cache.go: spread > 16 → fewest requests; else by match, then requests, the
    first whose requests are within mean + 2 sigma."""

    def pick(self) -> int:
        nodes, loads = self.fleet.prefills, self.fleet.sent.active()
        own = loads[nodes]
        if own.max() - own.min() > 16:
            return self.fewest(nodes)
        limit = own.mean() + 2 * own.std()
        order = sorted(
            nodes.tolist(), key=lambda n: (-self.fleet.held[n], loads[n], self.fleet.rng.random())
        )
        return next(node for node in order if loads[node] <= limit)


class LlmD(Rule):
    """llm-d's default scorers, each in [0, 1]: prefix 3, queue 2, KV utilisation 2, and for
    requests that find nothing cached least recently used 2; picker max-score."""

    def __init__(self, fleet: Fleet, splits: bool) -> None:
        super().__init__(fleet, splits)
        self._cold: dict[int, int] = {}  # node → turn of its last request without a hit
        self._turns = 0

    def pick(self) -> int:
        fleet, nodes = self.fleet, self.fleet.prefills
        queues = fleet.report(state.R_WAITING)[nodes]
        spread = queues.max() - queues.min()
        queue = (queues.max() - queues) / spread if spread > 0 else np.ones(len(nodes))
        used = (fleet.report(state.R_CONTEXT) / fleet.capacity)[nodes]
        prefix = fleet.held[nodes] / max(fleet.blocks, 1)
        fresh = np.full(len(nodes), 0.5)
        if not prefix.any():
            turns = np.array([self._cold.get(node, -1) for node in nodes.tolist()])
            fresh = 1 - turns.argsort(kind="stable").argsort() / max(len(nodes) - 1, 1)
        scores = 3 * prefix + 2 * queue + 2 * (1 - np.minimum(used, 1.0)) + 2 * fresh
        chosen = fleet.least(nodes, -scores)
        if not prefix.any():
            self._turns += 1
            self._cold[chosen] = self._turns
        return chosen


class LlmDAffinity(Rule):
    """llm-d's prefix-cache-affinity filter, then its token-load scorer: keep holders of 80 % of the
    prefix, but for 1 % of requests, unless the best of them makes the first token over 5 s later
    than the best of the others, by tokens that wait and the calibrated peak."""

    MOST = 4_194_304  # tokens of a node that scores 0

    def pick(self) -> int:
        fleet, nodes = self.fleet, self.fleet.prefills
        total = max(fleet.blocks, 1)
        sticky = nodes[fleet.held[nodes] / total >= 0.8]
        if len(sticky) and fleet.rng.random() >= 0.01:
            waits = fleet.sent.new_tokens() * fleet.speed.per_token
            others = np.setdiff1d(nodes, sticky)
            if not len(others) or waits[sticky].min() - waits[others].min() <= 5.0:
                nodes = sticky
        return fleet.least(nodes, np.minimum(fleet.sent.prompt_tokens()[nodes], self.MOST))


def dynamo_cost(
    active: Floats | float, new: Floats | float, cached: Floats | float, overlap: Floats | float,
    decode: Floats | float, added: Floats | float, *, block: int, scale: float = 1.0,
) -> Floats | float:  # fmt: skip
    """Blocks to prefill, less those on the device, and blocks to decode with. Tokens, but for
    `overlap`, `decode` and `added`."""
    raw = (active + new + cached) / block
    return scale * np.maximum(raw - overlap, 0.0) + decode + added


class Dynamo(Rule):
    """Dynamo's kv-router (`lib/kv-router/src/scheduling/selector/default.rs`), its defaults: no
    decay, no temperature, output blocks not tracked. Each live block of a node counts once, however
    many requests share it."""

    def __init__(self, fleet: Fleet, splits: bool) -> None:
        super().__init__(fleet, splits)
        self._live: list[Counter[int]] = [Counter() for _ in range(len(fleet.held))]
        self._names: dict[int, list[int]] = {}
        fleet.sent.ended = self._end

    def pick(self) -> int:
        fleet, nodes = self.fleet, self.fleet.prefills
        held = fleet.held[nodes].astype(np.float64)
        cached = held * fleet.block_size
        costs = dynamo_cost(
            fleet.sent.new_tokens()[nodes], np.maximum(fleet.prompt - cached, 0), cached,
            held, self._blocks(nodes), self._added(nodes), block=fleet.block_size,
        )  # fmt: skip
        return fleet.least(nodes, np.asarray(costs))

    def pick_decode(self, prefill: int) -> int:
        """Where fewest blocks are live with this prompt's: no overlap counts there."""
        nodes = self.fleet.decoders
        return self.fleet.least(nodes, self._blocks(nodes) + self._added(nodes))

    def note(self, prefill: int, decode: int) -> None:
        self._names[self.fleet.number] = self.fleet.names
        self._live[decode].update(self.fleet.names)

    def _end(self, number: int, _prefill: int, decode: int) -> None:
        live = self._live[decode]
        for name in self._names.pop(number):
            live[name] -= 1
            if not live[name]:
                del live[name]

    def _blocks(self, nodes: Int64s) -> Floats:
        return np.array([float(len(self._live[node])) for node in nodes.tolist()])

    def _added(self, nodes: Int64s) -> Floats:
        """Blocks of the prompt that are not live yet."""
        found = []
        for node in nodes.tolist():
            live, count = self._live[node], 0
            for name in self.fleet.names:
                if name not in live:
                    break
                count += 1
            found.append(math.ceil(self.fleet.prompt / self.fleet.block_size) - count)
        return np.array(found, np.float64)
