"""What Python calls beside `loop.advance`."""

from __future__ import annotations

from skerry_regions.routing.fast.compiled import Int64s, called
from skerry_regions.routing.fast.sources import leading_blocks, look_up
from skerry_regions.twin.kernel.heap import push
from skerry_regions.twin.kernel.known import write_slot
from skerry_regions.twin.kernel.state import Clock, World


@called
def push_event(clock: Clock, at: float, kind: int, subject: int, stamp: int) -> None:
    """Add an event."""
    push(clock, at, kind, subject, stamp)


@called
def touch_slot(world: World, region: int, slot: int) -> None:
    """Put a slot whose marks changed into its place in the trees of a region's edges."""
    regions = world.regions
    for e in range(regions.first_edge[region], regions.first_edge[region + 1]):
        write_slot(world, e, slot, world.edges.seen_at[e])


@called
def count_held(world: World, x: int, held: Int64s) -> None:
    """Fill in, by node, how many leading blocks of a request edges know, or expect, there."""
    first = world.requests.first[x]
    names = world.names[first : first + world.requests.num_blocks[x]]
    known = look_up(world.index, names, world.scratch.values)
    for s in range(held.shape[0]):
        held[s] = leading_blocks(world.index, world.scratch.values, known, s)
