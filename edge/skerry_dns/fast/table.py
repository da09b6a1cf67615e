"""What the fast path knows: arrays that do not change once they are made, and looking things up.

Names are hashed label by label from the root, so that one walk over a query's name finds the
longest part of it that exists: the name itself, or the closest encloser of one that does not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_dns.fast.compiled import Bytes, Int32s, Int64s, UInt64s, compiled, wide

SEED = np.uint64(0xCBF29CE484222325)
PRIME = np.uint64(0x100000001B3)  # FNV-1a

# Columns of `entries`: one existing name each.
NAME, NAME_LENGTH, EXACT, EXACT_COUNT, BELOW, BELOW_COUNT = range(6)
# Columns of `choices`: rows of `answers` for one type; the last choice of a name is for all others.
TYPE, BY_PLACE = 0, 1
FOR_DNSSEC = 2  # and the two columns behind: without signatures, with DO, with DO and CO
# Columns of `answers`.
(
    BODY,  # where in `bodies`: all that follows the question
    BODY_LENGTH,
    POINTERS,  # where in `pointers`: what moves when the name is longer than …
    POINTER_COUNT,
    TEMPLATE_NAME,  # … that of the rendered answer, in bytes
    RCODE,
    AUTHORITATIVE,
    ANSWERS,
    AUTHORITY,
    ADDITIONAL,
    SCOPED,  # 1: true for the client's block only
    RATE_NAME,  # what limits count together: 0 the name requested, else all of this number
    WHOLE,  # whether the answer is here
    TURNS,  # above 1: one of so many rows …
    TURN_ROW,  # … from this one on, with the same records in another order
) = range(15)
ANSWER_COLUMNS = 15
# Values of `WHOLE`: the slow path has it; it is here; it is signed there for holders of a cookie.
IS_LEFT, IS_WHOLE, IS_MADE = range(3)
CHOICE_COLUMNS = 5

REFUSED_ROW, FORMERR_ROW, BADVERS_ROW = 0, 1, 2  # of `answers`


class Blocks(NamedTuple):
    """Blocks of addresses of one family, side by side from the first address to the last."""

    firsts: Int32s  # by the first 16 bits: the block that holds the first such address
    starts: UInt64s  # first 64 bits of the first address
    clients: Int32s
    scopes: Int32s  # bits


class Table(NamedTuple):
    """Everything, for one version of zones, places and orders."""

    generation: Int64s  # one number
    slots: Int32s  # open addressing: entries by hash, -1 for none; a power of two
    names: Bytes
    entries: Int32s
    choices: Int32s
    answers: Int32s
    bodies: Bytes
    pointers: Int32s  # offsets within a body
    orders: Int32s  # by client and slot: which of the orders of regions
    num_slots: Int64s  # one number: slots of each client
    ipv4: Blocks
    ipv6: Blocks
    server_id: Bytes


def empty_table() -> Table:
    """Return one that leaves everything to the slow path."""
    none, flat = np.zeros((0, 0), np.int32), np.zeros(0, np.int32)
    nothing = np.zeros(0, np.uint8)
    blocks = Blocks(flat, np.zeros(0, np.uint64), flat, flat)
    return Table(
        np.zeros(1, np.int64), flat, nothing, none, none, none, nothing, flat, flat,
        np.ones(1, np.int64), blocks, blocks, nothing,
    )  # fmt: skip


@compiled
def hashed(start: np.uint64, name: Bytes, at: int) -> np.uint64:
    """Return the hash of a name by that of its parent: one label, with its length, goes in."""
    value = start
    for i in range(at, at + 1 + wide(name[at])):
        value = (value ^ np.uint64(name[i])) * PRIME
    return value


@compiled
def slot_of(value: np.uint64, slots: int) -> int:
    """Return where a hash is looked for first."""
    return wide((value ^ value >> np.uint64(32)) & np.uint64(slots - 1))


@compiled
def find_name(
    table: Table, name: Bytes, length: int, labels: Int64s, count: int
) -> tuple[int, int, np.uint64]:
    """Return the longest part of a name that exists: its entry (-1: nothing of ours), and where it
    begins; and the hash of the whole name."""
    value, found, start = SEED, -1, 0
    for i in range(count - 1, -1, -1):
        value = hashed(value, name, labels[i])
        entry = _probe(table, value, name, labels[i], length)
        if entry >= 0:
            found, start = entry, labels[i]
    return found, start, value


@compiled
def _probe(table: Table, value: np.uint64, name: Bytes, start: int, end: int) -> int:
    slot = slot_of(value, table.slots.size)
    while table.slots[slot] >= 0:
        entry = wide(table.slots[slot])
        at = wide(table.entries[entry, NAME])
        if table.entries[entry, NAME_LENGTH] == end - start:
            same = True
            for i in range(end - start):
                if table.names[at + i] != name[start + i]:
                    same = False
                    break
            if same:
                return entry
        slot = (slot + 1) & (table.slots.size - 1)
    return -1


@compiled
def find_choice(table: Table, entry: int, exact: bool, rdtype: int) -> int:
    """Return which of a name's choices is for a type."""
    first = wide(table.entries[entry, EXACT if exact else BELOW])
    last = first + wide(table.entries[entry, EXACT_COUNT if exact else BELOW_COUNT]) - 1
    for row in range(first, last):
        if table.choices[row, TYPE] == rdtype:
            return row
    return last


@compiled
def find_block(blocks: Blocks, address: np.uint64) -> int:
    """Return the block that holds the address with these first 64 bits."""
    high = wide(address >> np.uint64(48))
    low, top = wide(blocks.firsts[high]), wide(blocks.firsts[high + 1])
    while low < top:
        middle = (low + top + 1) >> 1
        if blocks.starts[middle] <= address:
            low = middle
        else:
            top = middle - 1
    return low
