"""Who waits and who runs, of one scheduling class. The scheduler decides; this keeps count."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Container, Mapping
from operator import attrgetter

from skerry_core.blocks import blocks_for
from skerry_core.engine.fairness import FairShare
from skerry_core.engine.sequence import Sequence
from skerry_core.request import Priority

_arrival = attrgetter("arrival")


class SchedulingClass:
    """The sequences of one priority. None of the waiting queues is empty, each is in order of
    arrival."""

    def __init__(self) -> None:
        self.running: dict[Sequence, None] = {}
        self.waiting: dict[str, list[Sequence]] = {}  # by tenant
        self.num_waiting = 0
        self.fair = FairShare()
        self._tenant_running: Counter[str] = Counter()

    def num_running_of(self, tenant: str) -> int:
        return self._tenant_running[tenant]

    def newcomers(self) -> list[Sequence]:
        """Return the first in the queue of each tenant that is a newcomer, by arrival."""
        is_newcomer = self.fair.is_newcomer
        heads = [queue[0] for tenant, queue in self.waiting.items() if is_newcomer(tenant)]
        heads.sort(key=_arrival)
        return heads

    def ready(self) -> list[Sequence]:
        """Return the running sequences that may decode."""
        return [s for s in self.running if s.is_decoding and not (s.awaits_mask or s.is_complete)]

    def prefills(self, planned: Container[Sequence]) -> dict[str, list[Sequence]]:
        """Return the running sequences with more than a decode to do that are not planned yet, by
        tenant, the oldest last."""
        started: dict[str, list[Sequence]] = {}
        for sequence in self.running:
            if sequence not in planned and not sequence.is_stream:
                started.setdefault(sequence.tenant, []).append(sequence)
        for sequences in started.values():
            sequences.sort(key=_arrival, reverse=True)
        return started

    def enqueue(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn among those of its tenant."""
        insort(self.waiting.setdefault(sequence.tenant, []), sequence, key=_arrival)
        self.num_waiting += 1

    def dequeue(self, sequence: Sequence) -> None:
        """Take a waiting sequence out."""
        queue = self.waiting[sequence.tenant]
        queue.remove(sequence)
        if not queue:
            del self.waiting[sequence.tenant]
        self.num_waiting -= 1

    def start(self, sequence: Sequence) -> None:
        """Let a waiting sequence run."""
        self.dequeue(sequence)
        self.running[sequence] = None
        self._tenant_running[sequence.tenant] += 1

    def stop(self, sequence: Sequence) -> None:
        """Take a running sequence out."""
        del self.running[sequence]
        self._tenant_running[sequence.tenant] -= 1
        if not self._tenant_running[sequence.tenant]:
            del self._tenant_running[sequence.tenant]


Classes = Mapping[Priority, SchedulingClass]


def blocks_needed(classes: Classes, sequence: Sequence, num_matched: int) -> int:
    """Return idle blocks that a waiting sequence is admitted with: for its own tokens but those of
    `num_matched` blocks, for the prompts in work that do not stand behind it, and one each to
    grow."""
    needed = blocks_for(sequence.num_tokens) - num_matched
    for priority, own in classes.items():
        if priority <= sequence.priority:
            for other in own.running:
                needed += 1 + max(0, blocks_for(other.num_tokens) - len(other.blocks))
    return needed


def share_of_streams(classes: Classes, num_parts: int, num_free: int) -> int:
    """Return how many decode rows the next step takes, of `num_parts` that may be under way at
    once: its part of all, and of those that are ready its part beside the steps that may follow,
    `num_free` with it, before the oldest is waited for.

    None starves: while one waits each other runs at most once in `num_parts` steps, which have room
    for all.
    """
    num_ready = sum(len(own.ready()) for own in classes.values())
    num_streams = sum(s.is_stream for own in classes.values() for s in own.running)
    return min(-(-num_ready // num_free), -(-num_streams // num_parts))
