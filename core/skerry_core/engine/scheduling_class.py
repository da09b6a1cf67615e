"""Who waits and who runs, of one scheduling class. The scheduler decides; this keeps count."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Container
from operator import attrgetter

from skerry_core.engine.fairness import FairShare
from skerry_core.engine.sequence import Sequence

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

    def prefills(self, planned: Container[Sequence]) -> dict[str, list[Sequence]]:
        """Return the running sequences with more than a decode to do that are not planned yet, by
        tenant, the oldest last."""
        started: dict[str, list[Sequence]] = {}
        for sequence in self.running:
            if sequence not in planned and not sequence.is_decoding:
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
