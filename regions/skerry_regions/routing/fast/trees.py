"""The least of many keys, kept up to date: a tournament tree over slots.

`tree[i]` is the slot with the least key below inner node i; there are a power of two of slots.
"""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.compiled import Floats, Int64s, compiled


@compiled
def winner(tree: Int64s, node: int) -> int:
    """Return the slot that wins below a node; leaves are numbered after the inner ones."""
    size = tree.shape[0]
    return node - size if node >= size else tree[node]


@compiled
def set_key(keys: Floats, tree: Int64s, slot: int, key: float) -> None:
    """Change one key, in log2(slots) comparisons."""
    keys[slot] = key
    node = (slot + tree.shape[0]) >> 1
    while node >= 1:
        left, right = winner(tree, 2 * node), winner(tree, 2 * node + 1)
        tree[node] = left if keys[left] <= keys[right] else right
        node >>= 1


@compiled
def build(keys: Floats, tree: Int64s) -> None:
    """Make the tree of all keys."""
    for node in range(tree.shape[0] - 1, 0, -1):
        left, right = winner(tree, 2 * node), winner(tree, 2 * node + 1)
        tree[node] = left if keys[left] <= keys[right] else right


@compiled
def start(front: Int64s) -> int:
    """Begin a walk from the least key upwards; return the length of its front."""
    front[0] = 1
    return 1


@compiled
def next_least(keys: Floats, tree: Int64s, front: Int64s, length: int) -> tuple[int, int]:
    """Return the slot with the next least key, and the front's new length; -1 when none is finite.

    The front holds the roots of subtrees that no slot was taken of. When it is full, the worst of
    them is dropped.
    """
    size = tree.shape[0]
    best, least = -1, np.inf
    for j in range(length):
        key = keys[winner(tree, front[j])]
        if key < least:
            best, least = j, key
    if best < 0:
        return -1, length
    node = front[best]
    found = winner(tree, node)
    length -= 1
    front[best] = front[length]
    while node < size:  # down along the winner; the losers on the way join the front
        left = 2 * node
        if winner(tree, left) == found:
            node, other = left, left + 1
        else:
            node, other = left + 1, left
        if length < front.shape[0]:
            front[length] = other
            length += 1
            continue
        worst, most = -1, keys[winner(tree, other)]
        for j in range(length):
            key = keys[winner(tree, front[j])]
            if key > most:
                worst, most = j, key
        if worst >= 0:
            front[worst] = other
    return found, length
