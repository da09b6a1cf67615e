"""Names as `find_name` of `table` looks for them: a hash table with open addressing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from skerry_dns.fast.compiled import Bytes, Int32s
from skerry_dns.fast.table import SEED, hashed, slot_of

SLOTS_PER_NAME = 4


def index_names(
    names: Iterable[bytes], spans: Iterable[tuple[int, ...]]
) -> tuple[Bytes, Int32s, Int32s]:
    """Return names side by side, entries, and slots."""
    wires = list(names)
    every = np.frombuffer(b"".join(wires), np.uint8).copy()
    starts = list(itertools.accumulate(map(len, wires), initial=0))
    entries = [
        (start, len(wire), *span)
        for start, wire, span in zip(starts[:-1], wires, spans, strict=True)
    ]
    slots = np.full(1 << max(4, (len(wires) * SLOTS_PER_NAME).bit_length()), -1, np.int32)
    for number, wire in enumerate(wires):
        slot = slot_of(_hash(wire), slots.size)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = number
    return every, np.array(entries, np.int32), slots


def _hash(wire: bytes) -> np.uint64:
    """Hash a name as `find_name` does: label by label from the root."""
    name = np.frombuffer(wire, np.uint8)
    starts = []
    at = 0
    while wire[at]:
        starts.append(at)
        at += 1 + wire[at]
    value = SEED
    for start in reversed(starts):
        value = hashed(value, name, start)
    return value
