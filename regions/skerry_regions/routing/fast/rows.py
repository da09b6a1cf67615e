"""One row changes: a node's numbers, and its place in the trees."""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import CLOSED, DECODE, FLAGS, LIVE, PREFILL, ROLE, Rows
from skerry_regions.routing.fast.compiled import Floats, compiled
from skerry_regions.routing.fast.laws import CONTEXT, STREAMS, step_seconds, would_end
from skerry_regions.routing.fast.trees import set_key


@compiled
def write_row(rows: Rows, slot: int, numbers: Floats, stream_weight: float) -> None:
    """Write a node's numbers; its marks are those of now. `stream_weight`: see `would_end`."""
    row, marks = rows.numbers[slot], rows.marks[slot]
    for column in range(numbers.shape[0]):
        row[column] = numbers[column]
    is_open = marks[LIVE] != 0 and marks[FLAGS] & CLOSED == 0
    decodes, offers = marks[ROLE] != PREFILL, marks[ROLE] != DECODE
    ends = would_end(row, stream_weight)
    pace = step_seconds(row, row[STREAMS] + 1, row[CONTEXT])
    set_key(rows.offering, slot, ends if is_open and offers else np.inf)
    set_key(rows.withheld, slot, ends if is_open and not offers else np.inf)
    set_key(rows.pace, slot, pace if is_open and decodes else np.inf)
