"""The least of many keys, kept up to date: a tournament tree over slots, in one array.

`tree[1]` is the least key of all and `tree[i]` that of `tree[2i]` and `tree[2i + 1]`, which share a
line of the processor's cache. The keys of slots, a power of two of them, are the second half.
"""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.compiled import Floats, Int64s, compiled


@compiled
def set_key(tree: Floats, slot: int, key: float) -> None:
    """Change one key, in log2(slots) comparisons at most."""
    node = (tree.shape[0] >> 1) + slot
    tree[node] = key
    while node > 1:
        node >>= 1
        least = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == least:
            return
        tree[node] = least


@compiled
def push(keys: Floats, nodes: Int64s, length: int, key: float, node: int) -> int:
    """Add a subtree to the front of a walk, a heap of those that no slot was taken of; return its
    new length. A front that is full stays as it is."""
    if length == keys.shape[0] or key == np.inf:
        return length
    place = length
    while place > 0 and keys[(place - 1) >> 1] > key:
        above = (place - 1) >> 1
        keys[place], nodes[place] = keys[above], nodes[above]
        place = above
    keys[place], nodes[place] = key, node
    return length + 1


@compiled
def drop_first(keys: Floats, nodes: Int64s, length: int) -> int:
    """Remove the least subtree of a front; return its new length."""
    length -= 1
    key, node, place = keys[length], nodes[length], 0
    while 2 * place + 1 < length:
        below = 2 * place + 1
        if below + 1 < length and keys[below + 1] < keys[below]:
            below += 1
        if keys[below] >= key:
            break
        keys[place], nodes[place] = keys[below], nodes[below]
        place = below
    keys[place], nodes[place] = key, node
    return length


@compiled
def next_least(tree: Floats, keys: Floats, nodes: Int64s, length: int) -> tuple[int, int]:
    """Return the slot with the next least key, and the front's new length; -1 when none is finite.

    A walk begins with `push(keys, nodes, 0, tree[1], 1)`.
    """
    if length == 0:
        return -1, 0
    key, node = keys[0], nodes[0]
    length = drop_first(keys, nodes, length)
    size = tree.shape[0] >> 1
    while node < size:  # down along the winner; the losers on the way join the front
        node *= 2
        if tree[node] != key:
            node += 1
        length = push(keys, nodes, length, float(tree[node ^ 1]), node ^ 1)
    return node - size, length
