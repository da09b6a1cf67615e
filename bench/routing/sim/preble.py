"""Preble's global scheduler (ICLR'25; `GlobalSchedulerWithTime`), as its code has it.

A radix tree of prompts says where prefixes were computed. A prompt whose own part is the smaller
one goes where its prefix is; others go to the least load, in seconds of the last three minutes.
Prefixes are moved from the heaviest to the lightest node, or copied there.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator

import numpy as np

from bench.routing.sim.fleet import Fleet
from bench.routing.sim.rules import Rule
from skerry_regions.routing.fast.compiled import Floats

WINDOW = 180.0  # seconds
MANY = 50  # requests from which on load is moved
IMBALANCE, SLOWDOWN = 1.5, 2.0
FIRST_OUTPUT, FIRST_PACE = 45.0, 0.15  # tokens, and seconds of one


class Branch:
    """A run of blocks that prompts share, in the tree."""

    def __init__(self, above: Branch | None, names: list[int], tokens: int) -> None:
        self.above, self.names, self.tokens = above, names, tokens
        self.below: dict[int, Branch] = {}
        self.nodes: set[int] = set()  # where it was computed
        self.promised: set[int] = set()  # where it is to be computed next
        self.at: set[int] = set()  # nodes whose load it counts for
        self.asked = self.misses = 0  # in the window
        self.first_tokens: deque[tuple[float, float]] = deque()
        self.depth: int = len(names) + (above.depth if above else 0)  # blocks up to its end
        self.context: int = above.context + above.tokens if above else 0  # tokens before it

    @property
    def is_important(self) -> bool:
        """Whether it is the larger part of what it ends."""
        return self.tokens > self.context

    def up(self) -> Iterator[Branch]:
        """It, and what is above it."""
        at = self
        while at.above is not None:
            yield at
            at = at.above


class Preble(Rule):
    """See the module. Output lengths are the median of those that ended, not the request's own."""

    def __init__(self, fleet: Fleet, splits: bool) -> None:
        super().__init__(fleet, splits)
        self._root = Branch(None, [], 0)
        self._work = dict.fromkeys(range(len(fleet.held)), 0.0)
        self._asked: deque[tuple[float, Branch, bool]] = deque()  # when, what, was it a miss
        self._running: dict[int, Branch] = {}
        self._ended: deque[tuple[float, float]] = deque(maxlen=200)  # output, seconds of a token
        self._decode_seconds = FIRST_OUTPUT * FIRST_PACE  # of a request
        self._count = 0
        fleet.sent.ended = self._end

    def pick(self) -> int:
        fleet = self.fleet
        self._forget()
        leaf = self._leaf = self._insert()
        holders = next(
            (
                found
                for branch in leaf.up()
                if (found := [n for n in branch.nodes if self._has(n, branch)])
            ),
            [],
        )
        if leaf.tokens < leaf.context and holders:
            loads = self._loads()
            return min(holders, key=lambda node: float(loads[node]))
        return fleet.least(fleet.prefills, self._loads()[fleet.prefills])

    def note(self, prefill: int, decode: int) -> None:
        now, leaf = self.fleet.now, self._leaf
        important = next((branch for branch in leaf.up() if branch.is_important), leaf)
        self._count_off(important)
        is_miss = prefill not in important.nodes
        important.asked += 1
        important.misses += is_miss
        self._asked.append((now, important, is_miss))
        important.at.add(prefill)
        for branch in leaf.up():
            if branch is not important:
                self._count_off(branch)
            branch.nodes.add(prefill)
            branch.promised.discard(prefill)
            self._count_in(branch)
        self._running[self.fleet.number] = important
        self._count += 1
        if self._count >= MANY and self._count % 10 == 0:
            self._rebalance()

    def _end(self, number: int, _prefill: int, _decode: int) -> None:
        requests = self.fleet.run.built.world.requests
        branch, first = self._running.pop(number), float(requests.first_token[number])
        branch.first_tokens.append((self.fleet.now, first))
        output = int(self.fleet.run.built.workload.outputs[number])
        pace = (float(requests.end[number]) - first) / max(output - 1, 1)
        self._ended.append((float(output), pace))
        outputs, paces = zip(*self._ended, strict=True)
        self._decode_seconds = statistics.median(outputs) * statistics.median(paces)

    def _insert(self) -> Branch:
        """Put the prompt into the tree; return its last branch."""
        fleet = self.fleet
        names, size = fleet.names, fleet.block_size
        at, place = self._root, 0
        while place < len(names) and (child := at.below.get(names[place])) is not None:
            same = 0
            while same < len(child.names) and place + same < len(names):
                if child.names[same] != names[place + same]:
                    break
                same += 1
            if same < len(child.names):
                self._count_off(child)
                upper = _cut(child, same, size)
                self._count_in(child)
                child = upper
            at, place = child, place + same
        leaf = Branch(at, names[place:], fleet.prompt - place * size)  # a part of a block is new
        if leaf.names:
            at.below[leaf.names[0]] = leaf
        return leaf

    def _load(self, node: int) -> float:
        return float(self._loads()[node])

    def _loads(self) -> Floats:
        """By node: seconds that prompts of the window ask for."""
        work = np.array(list(self._work.values()), np.float64)
        return work + self.fleet.sent.active().astype(np.float64) * self._decode_seconds

    def _forget(self) -> None:
        """Count no longer what was asked before the window."""
        while self._asked and self._asked[0][0] < self.fleet.now - WINDOW:
            _, branch, is_miss = self._asked.popleft()
            self._count_off(branch)
            branch.asked -= 1
            branch.misses -= is_miss
            if not branch.asked:
                branch.at.clear()
            self._count_in(branch)

    def _count_in(self, branch: Branch, sign: int = 1) -> None:
        seconds = self._seconds(branch)
        for node in branch.at:
            self._work[node] += sign * seconds

    def _count_off(self, branch: Branch) -> None:
        self._count_in(branch, -1)

    def _seconds(self, branch: Branch) -> float:
        """Of prefilling a branch in the window, on each node that has it."""
        seconds = self.fleet.seconds(branch.tokens, branch.context) if branch.misses else 0.0
        return branch.misses * seconds / max(len(branch.nodes), 1)

    def _rebalance(self) -> None:
        nodes = self.fleet.prefills.tolist()
        heavy, light = max(nodes, key=self._load), min(nodes, key=self._load)
        there = {branch for _, branch, _ in self._asked if heavy in branch.at}
        for branch in sorted(there, key=lambda each: (self._seconds(each), each.depth)):
            if self._load(heavy) <= IMBALANCE * self._load(light):
                return
            seconds = self._seconds(branch)
            if len(there) == 1 and not self._slows(branch):
                return
            if len(there) > 1 and self._load(light) + seconds > self._load(heavy) - seconds:
                return
            self._count_off(branch)
            if len(there) > 1:
                branch.nodes.discard(heavy)
                branch.at.discard(heavy)
            branch.nodes.add(light)
            branch.promised.add(light)
            branch.at.add(light)
            self._count_in(branch)

    def _has(self, node: int, branch: Branch) -> bool:
        above = branch.above.depth if branch.above else 0
        return node in branch.promised or self.fleet.held[node] > above

    def _slows(self, branch: Branch) -> bool:
        """Whether first tokens of the window's second half took twice those of its first."""
        middle = self.fleet.now - WINDOW / 2
        recent = [each for each in branch.first_tokens if each[0] > self.fleet.now - WINDOW]
        before = [seconds for at, seconds in recent if at <= middle]
        after = [seconds for at, seconds in recent if at > middle]
        if not before or not after:
            return False
        return statistics.mean(after) >= SLOWDOWN * statistics.mean(before)


def _cut(branch: Branch, length: int, size: int) -> Branch:
    """Make two branches of one; return the upper one."""
    assert branch.above is not None
    upper = Branch(branch.above, branch.names[:length], length * size)
    upper.nodes = set(branch.nodes)
    branch.above.below[upper.names[0]] = upper
    branch.above, branch.names = upper, branch.names[length:]
    branch.tokens -= length * size
    branch.context += length * size
    upper.below[branch.names[0]] = branch
    return upper
