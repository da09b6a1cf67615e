"""Collecting rendered answers into the arrays of a `Table`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import dns.flags
import numpy as np

from skerry_dns.fast.compiled import Bytes, Int32s
from skerry_dns.fast.table import ANSWER_COLUMNS, IS_WHOLE, TURN_ROW, TURNS
from skerry_dns.fast.templates import Template

RCODE_BITS = 0xF

Arrays = tuple[Int32s, Bytes, Int32s]  # answers, bodies, pointers
Row = tuple[int, ...]


@dataclass(slots=True)
class Answers:
    """Rows that will stand behind those of `after`; equal ones are kept once."""

    after: Arrays | None = None
    _rows: list[Row] = field(default_factory=list[Row])
    _bodies: bytearray = field(default_factory=bytearray)
    _pointers: list[int] = field(default_factory=list[int])
    _known: dict[object, int] = field(default_factory=dict[object, int])

    def add(self, turns: Sequence[Template], *, rate_name: int = 0, whole: int = IS_WHOLE) -> int:
        """Return the row of an answer that is given in turns; `whole` as in `tables.WHOLE`."""
        key = tuple(turns), rate_name, whole
        if (known := self._known.get(key)) is None:
            row = self.put(turns, rate_name=rate_name, whole=whole)
            known = self._known[key] = self.append(row)
        return known

    def put(
        self,
        turns: Sequence[Template],
        *,
        rate_name: int = 0,
        is_scoped: bool = False,
        whole: int = IS_WHOLE,
    ) -> Row:
        """Keep an answer; its row, which is still to be appended."""
        rows = [self._row(each, rate_name, is_scoped, whole) for each in turns]
        if len(rows) == 1:
            return rows[0]
        first, *_ = [self.append(row) for row in rows]
        head = list(rows[0])
        head[TURNS], head[TURN_ROW] = len(rows), first
        return tuple(head)

    def append(self, row: Row) -> int:
        """Return its number."""
        self._rows.append(row)
        return self._start(0) + len(self._rows) - 1

    def arrays(self) -> Arrays:
        """Return all rows, bodies and pointers, those of `after` first."""
        rows = np.array(self._rows, np.int32).reshape(-1, ANSWER_COLUMNS)
        bodies = np.frombuffer(bytes(self._bodies), np.uint8)
        pointers = np.array(self._pointers, np.int32)
        if self.after is None:
            return rows, bodies.copy(), pointers
        before = self.after
        return (
            np.concatenate((before[0], rows)),
            np.concatenate((before[1], bodies)),
            np.concatenate((before[2], pointers)),
        )

    def _row(self, template: Template, rate_name: int, is_scoped: bool, whole: int) -> Row:
        row = (
            self._start(1) + len(self._bodies),
            len(template.body),
            self._start(2) + len(self._pointers),
            len(template.pointers),
            template.name_length,
            template.flags & RCODE_BITS,
            bool(template.flags & dns.flags.AA),
            *template.counts,
            is_scoped,
            rate_name,
            whole,
            1,
            0,
        )
        if whole == IS_WHOLE:
            self._bodies += template.body
            self._pointers += template.pointers
        return row

    def _start(self, array: int) -> int:
        return 0 if self.after is None else len(self.after[array])
