"""What of a router is compiled: for a cache of kernels, which whoever starts an edge has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof

from skerry_regions import speeds
from skerry_regions.routing.block_index import DirectoryLimits
from skerry_regions.routing.fast import (
    arrays,
    candidates,
    compiled,
    holders,
    laws,
    levels,
    pending,
    price,
    ranking,
    rows,
    sources,
    trees,
)
from skerry_regions.routing.fast.index import CompiledIndex

SOURCES = (
    arrays, candidates, compiled, holders, laws, levels, pending, price, ranking, rows, sources,
    trees,
)  # fmt: skip
"""Modules whose code ends up in the kernels."""
CONSTANTS = (speeds.LEAST_CHUNK,)
"""Values from elsewhere that do."""


def kernels(variant: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the functions, by name, and the types of what they are called with."""
    index = CompiledIndex(DirectoryLimits()).arrays
    table, names, name = index.told, np.zeros(1, np.uint64), np.uint64(0)
    row, scratch = arrays.make_rows(64, 1), arrays.make_scratch(64, 8, 4, 1)
    slots, told = np.zeros(1, np.int64), np.zeros((1, 2), np.int64)
    ask = arrays.Ask(0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, False, False, name, True)
    weights = arrays.Weights(64.0, 0.0, 0.0, 0.0, 0.0, 1, 1, 1, 1)
    called: dict[Any, tuple[object, ...]] = {
        ranking.rank: (row, index, ask, weights, names, slots, told, scratch),
        rows.write_row: (row, 0, row.numbers[0], 0.0),
        pending.tell: (index, names, 0, 0, False, 8),
        pending.expect: (index, names, 0, 0, 0.0, 8),
        pending.expire: (index, names, 0, 0.0),
        pending.forget: (index, names, 0),
        pending.move_pending: (index, names, index.expiries),
        pending.expected_at: (index, name, 0),
        holders.place_of: (table, name),
        holders.holds: (table, 0, 0),
        holders.is_holder: (table, name, 0),
        holders.move_entries: (table, names, table.values),
        holders.remove_all: (table, 0),
    }
    return {
        function.__name__: (function, tuple(typeof(each) for each in arguments))
        for function, arguments in called.items()
    }
