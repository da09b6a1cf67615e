"""Events in order of time."""

from __future__ import annotations

from skerry_regions.routing.fast.compiled import compiled
from skerry_regions.twin.kernel.state import Clock


@compiled
def push(clock: Clock, at: float, kind: int, subject: int, stamp: int) -> None:
    """Add an event; the caller has seen to room for it."""
    times, place = clock.events.times, clock.length[0]
    clock.length[0] = place + 1
    while place > 0:
        above = (place - 1) >> 1
        if times[above] <= at:
            break
        move(clock, above, place)
        place = above
    times[place], clock.events.kinds[place] = at, kind
    clock.events.subjects[place], clock.events.stamps[place] = subject, stamp


@compiled
def move(clock: Clock, source: int, target: int) -> None:
    """Copy one event to another place."""
    events = clock.events
    events.times[target], events.kinds[target] = events.times[source], events.kinds[source]
    events.subjects[target] = events.subjects[source]
    events.stamps[target] = events.stamps[source]


@compiled
def drop_first(clock: Clock) -> None:
    """Remove the event at place 0."""
    length = clock.length[0] - 1
    clock.length[0] = length
    times = clock.events.times
    at, place = times[length], 0
    while True:
        below = 2 * place + 1
        if below >= length:
            break
        if below + 1 < length and times[below + 1] < times[below]:
            below += 1
        if times[below] >= at:
            break
        move(clock, below, place)
        place = below
    move(clock, length, place)
