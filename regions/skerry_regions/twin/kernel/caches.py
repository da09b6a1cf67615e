"""Which blocks a node holds, least recently used first to go; and what it has to report of that."""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.compiled import Bytes, UInt64s, called, compiled, wide
from skerry_regions.twin.kernel.state import NONE, OWN, BlockCaches, Nodes

EMPTY = np.uint64(0)


@compiled
def slot_of(keys: UInt64s, name: np.uint64) -> int:
    """Return where a name's search begins."""
    return wide((name ^ (name >> np.uint64(29))) & np.uint64(keys.shape[0] - 1))


@compiled
def find(caches: BlockCaches, node: int, name: np.uint64) -> int:
    """Return the entry of a name in a node's table, or -1."""
    keys = caches.keys[node]
    at, mask = slot_of(keys, name), keys.shape[0] - 1
    while keys[at] != EMPTY:
        if keys[at] == name:
            return at
        at = (at + 1) & mask
    return NONE


@compiled
def unlink(caches: BlockCaches, node: int, place: int) -> None:
    """Take a place out of the list."""
    older, newer = caches.older[node, place], caches.newer[node, place]
    caches.newer[node, older] = newer
    caches.older[node, newer] = older


@compiled
def append(caches: BlockCaches, node: int, place: int) -> None:
    """Make a place the newest."""
    last = caches.older[node, 0]
    caches.newer[node, last] = place
    caches.older[node, place] = last
    caches.newer[node, place] = 0
    caches.older[node, 0] = place


@compiled
def erase(caches: BlockCaches, node: int, name: np.uint64) -> None:
    """Remove an entry, and move those that were pushed behind it (Knuth 6.4, algorithm R)."""
    keys, places = caches.keys[node], caches.places[node]
    mask = keys.shape[0] - 1
    hole = find(caches, node, name)
    at = hole
    while True:
        at = (at + 1) & mask
        if keys[at] == EMPTY:
            break
        home = slot_of(keys, keys[at])
        if ((at - home) & mask) >= ((at - hole) & mask):
            keys[hole], places[hole] = keys[at], places[at]
            hole = at
    keys[hole] = EMPTY


@compiled
def note(nodes: Nodes, node: int, name: np.uint64, gone: int) -> None:
    """Remember for the next report that a block came or went. (The ring is long enough: its owner
    reports early when it fills, and beyond that news are lost, as a directory's may be.)

    Of blocks that no other request has, only how many there are is reported: no edge ever looks
    for one, but for the request's own when its node has died.
    """
    if name & OWN:
        nodes.own_news[node] += 1 - 2 * gone
        return
    count = nodes.num_news[node]
    if count < nodes.news.shape[1]:
        nodes.news[node, count], nodes.gone[node, count] = name, gone
        nodes.num_news[node] = count + 1


@compiled
def hold(caches: BlockCaches, nodes: Nodes, node: int, name: np.uint64) -> None:
    """Make a block the most recent of a node; the oldest goes when there are too many."""
    found = find(caches, node, name)
    if found >= 0:
        place = wide(caches.places[node, found])
        if place != caches.older[node, 0]:
            unlink(caches, node, place)
            append(caches, node, place)
        return
    if caches.counts[node, 0] < caches.counts[node, 1]:
        caches.counts[node, 0] += 1
        place = caches.counts[node, 0]
    else:
        place = wide(caches.newer[node, 0])
        if place == 0:
            return  # a node without a cache
        old = caches.names[node, place]
        unlink(caches, node, place)
        erase(caches, node, old)
        note(nodes, node, old, 1)
    keys = caches.keys[node]
    at, mask = slot_of(keys, name), keys.shape[0] - 1
    while keys[at] != EMPTY:
        at = (at + 1) & mask
    keys[at] = name
    caches.places[node, at] = place
    caches.names[node, place] = name
    append(caches, node, place)
    note(nodes, node, name, 0)


@called
def hold_chain(
    caches: BlockCaches, nodes: Nodes, node: int, names: UInt64s, first: int, count: int
) -> None:
    """Hold a prompt's blocks, the first most recent, so that a chain is evicted from its end."""
    for n in range(first + count - 1, first - 1, -1):
        hold(caches, nodes, node, names[n])


@called
def mark_own(names: UInt64s, keys: UInt64s, uses: Bytes) -> None:
    """Set `OWN` in names that occur once, and in no others. `keys` (a power of two of them, at
    least twice as many as names) and `uses` are empty."""
    mask = keys.shape[0] - 1
    for n in range(names.shape[0]):
        name = names[n] & ~OWN
        at = slot_of(keys, name)
        while keys[at] != EMPTY and keys[at] != name:
            at = (at + 1) & mask
        keys[at] = names[n] = name
        uses[at] = min(uses[at] + 1, 2)
    for n in range(names.shape[0]):
        at = slot_of(keys, names[n])
        while keys[at] != names[n]:
            at = (at + 1) & mask
        if uses[at] == 1:
            names[n] |= OWN


@called
def leading(caches: BlockCaches, node: int, names: UInt64s, first: int, count: int) -> int:
    """Return how many of a prompt's first blocks a node holds."""
    for n in range(count):
        if find(caches, node, names[first + n]) < 0:
            return n
    return count
