"""Who makes room when slots or blocks are full: a sequence is preempted and computed again later.

Victims are batch before interactive, then of tenants with several sequences running, then of the
tenant with the most service, then the youngest. With the scheduler's rule 4 this settles: who was
displaced to one sequence displaces none.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from skerry_core.engine.scheduling_class import Classes
from skerry_core.engine.sequence import Sequence
from skerry_core.request import Priority


class Standing(NamedTuple):
    """What makes a running sequence a victim; the largest goes first."""

    priority: Priority
    is_settled: bool  # not a newcomer's: rule 3 must not be undone in its own step
    has_several: bool  # its tenant runs others as well
    service: float  # engine seconds of its tenant
    arrival: int


def victim(classes: Classes) -> Sequence:
    """Return the first victim; some sequence must run."""
    running = chain.from_iterable(each.running for each in classes.values())
    return max(running, key=lambda sequence: _standing(classes, sequence))


def victim_for(classes: Classes, sequence: Sequence, *, is_newcomer: bool) -> Sequence | None:
    """Return the running sequence whose place `sequence`, which waits, may take."""
    if not any(each.running for each in classes.values()):
        return None
    first = victim(classes)
    theirs, mine = _standing(classes, first), sequence.priority
    has_none = not classes[mine].num_running_of(sequence.tenant)
    may_take = theirs.priority > mine or (
        theirs.priority == mine
        and theirs.is_settled
        and (is_newcomer or (has_none and theirs.has_several))
    )
    return first if may_take else None


def _standing(classes: Classes, sequence: Sequence) -> Standing:
    tenant, own = sequence.tenant, classes[sequence.priority]
    return Standing(
        sequence.priority,
        not own.fair.is_newcomer(tenant),
        own.num_running_of(tenant) > 1,
        own.fair.service(tenant),
        sequence.arrival,
    )
