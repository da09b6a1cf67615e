"""What a routing rule of another system sees: the same reports as ours, and its own memory.

Nodes report as often to all; where blocks are is what an edge's index knows, expected ones
included. What a system counts itself of requests that it sent (`Sent`), it counts without delay.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from skerry_regions.routing.fast.arrays import DECODE, PREFILL
from skerry_regions.routing.fast.compiled import Floats, Int64s
from skerry_regions.speeds import NodeSpeed, attended_pairs
from skerry_regions.twin.kernel import state
from skerry_regions.twin.kernel.entries import count_held, push_event
from skerry_regions.twin.run import TwinRun

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Sent:
    """Requests of one edge that are not over, a row each: number, nodes, tokens to compute."""

    def __init__(self, requests: state.Requests, num_nodes: int) -> None:
        self._phases = np.asarray(requests.phase)
        self._prompts = np.asarray(requests.prompt)
        self._num_nodes = num_nodes
        self._rows = np.zeros((0, 4), np.int64)
        self._times = np.zeros(0)
        self.ended: Callable[[int, int, int], None] = lambda number, prefill, decode: None

    def add(self, number: int, prefill: int, decode: int, new_tokens: int, now: float) -> None:
        self._rows = np.vstack([self._rows, [[number, prefill, decode, new_tokens]]])
        self._times = np.append(self._times, now)

    def update(self) -> None:
        """Take in what is over."""
        over = self._phases[self._rows[:, 0]] >= state.DONE
        if over.any():
            for number, prefill, decode, _ in self._rows[over]:
                self.ended(int(number), int(prefill), int(decode))
            self._rows, self._times = self._rows[~over], self._times[~over]

    def active(self) -> Int64s:
        """By node: requests that it computes or will, in either phase."""
        waits = self._waits()
        at = np.where(waits, self._rows[:, 1], self._rows[:, 2])
        return self._count(at)

    def decoding(self) -> Int64s:
        """By node: requests that it decodes, or will."""
        return self._count(self._rows[:, 2])

    def new_tokens(self) -> Floats:
        """By node: uncached tokens of prompts whose first token is not out."""
        waits = self._waits()
        return self._sum(self._rows[waits, 1], self._rows[waits, 3].astype(np.float64))

    def prompt_tokens(self) -> Floats:
        """By node: tokens of all prompts."""
        waits = self._waits()
        at = np.where(waits, self._rows[:, 1], self._rows[:, 2])
        return self._sum(at, self._prompts[self._rows[:, 0]])

    def since(self, times: Floats) -> tuple[Int64s, Int64s]:
        """Prefill nodes and uncached tokens of prompts sent after a time of each node."""
        late = self._times > times[self._rows[:, 1]]
        return self._rows[late, 1], self._rows[late, 3]

    def _waits(self) -> Bools:
        return self._phases[self._rows[:, 0]] <= state.QUEUED

    def _count(self, nodes: Int64s) -> Int64s:
        return np.bincount(nodes, minlength=self._num_nodes).astype(np.int64)

    def _sum(self, nodes: Int64s, values: Floats) -> Floats:
        return np.bincount(nodes, values, self._num_nodes).astype(np.float64)


def place_again(run: TwinRun, number: int, now: float) -> None:
    """Have a request placed that was not."""
    world = run.built.world
    push_event(world.clock, now, state.AGAIN, number, int(world.requests.attempt[number]))


class Fleet:
    """A region's nodes as a rule sees them when the request `number` is to be placed."""

    def __init__(self, run: TwinRun, speed: NodeSpeed, rng: Random) -> None:
        self.run, self.speed, self.rng = run, speed, rng
        world, count = run.built.world, run.built.num_nodes
        requests = world.requests
        self._prompts = np.asarray(requests.prompt)
        self._firsts, self._counts = np.asarray(requests.first), np.asarray(requests.num_blocks)
        self._names, self._placed = world.names, world.clock.placed
        self.block_size = int(world.weights.block_size)
        self.bytes_per_second = float(world.regions.bandwidths[0, 0])
        self.kv_bytes = run.built.pools[0].kv_bytes_per_token
        self.capacity = np.array([pool.cache_tokens for pool in run.built.pools], np.float64)
        roles = np.asarray(world.nodes.role)[:count]
        self.prefills = np.flatnonzero(roles != DECODE)
        self.decoders = np.flatnonzero(roles != PREFILL)
        self.is_hybrid = bool((roles[self.prefills] != PREFILL).all())
        self._reports = np.asarray(world.nodes.reports)[:count, 0]
        self.sent = Sent(requests, count)
        self.held = np.zeros(count, np.int64)  # leading blocks of the prompt
        self.number = self.prompt = self.blocks = 0
        self.now = 0.0
        self.names: list[int] = []

    def look(self, number: int) -> None:
        """Take in the request that is to be placed."""
        self.now = float(self._placed[state.PLACED_AT])
        self.number, self.prompt = number, int(self._prompts[number])
        first, self.blocks = int(self._firsts[number]), int(self._counts[number])
        self.names = self._names[first : first + self.blocks].tolist()
        count_held(self.run.built.world, number, self.held)
        self.sent.update()

    def report(self, column: int) -> Floats:
        """A column of nodes' last reports."""
        return self._reports[:, column]

    def cached(self, node: int) -> int:
        """Tokens of the prompt that a node has, but for the last, which always runs."""
        return min(int(self.held[node]) * self.block_size, self.prompt - 1)

    def queue_seconds(self) -> Floats:
        """By node: its prompts' work as reported, what is over by now, and what was sent since."""
        made_at = self.report(state.MADE_AT)
        work = self.speed.per_token * self.report(state.TOKENS)
        work = work + self.speed.per_pair * self.report(state.PAIRS)
        seconds = np.maximum(work - (self.now - made_at), 0.0)
        for node, tokens in zip(*self.sent.since(made_at), strict=True):
            seconds[node] += self.seconds(int(tokens), 0)
        return seconds

    def seconds(self, new: int, cached: int) -> float:
        """Of computing a prompt."""
        return self.speed.per_token * new + self.speed.per_pair * attended_pairs(new, cached)

    def least(self, nodes: Int64s, costs: Floats | Int64s) -> int:
        """The node of the least cost (one for each of `nodes`); ties at random."""
        lowest = np.flatnonzero(costs == costs.min())
        return int(nodes[lowest[self.rng.randrange(len(lowest))] if len(lowest) > 1 else lowest[0]])
