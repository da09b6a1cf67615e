"""A batch cut into calls of few shapes: rows of one token together, every longer row by itself.

XLA compiles a program for each shape, so rows, tokens and block tables are padded to buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch, Int32
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.jax.jax_attention import PaddedRows
from skerry_core.kernels.jax.pallas_split import PIECE_BLOCKS, most_pieces

_LEAST_CHUNK = 32  # tokens
_LEAST_CONTEXT = 8  # blocks
_PIECE_TOKENS = PIECE_BLOCKS * BLOCK_SIZE
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """Rows of a batch that run in one compiled call, `length` tokens each."""

    rows: Int32  # i32[b]    rows of the batch
    starts: Int32  # i32[b]  first token of each, an index into the batch's tokens
    length: int

    @property
    def tokens(self) -> Int32:
        """Return i32[b, length]: indices into the batch's tokens."""
        tokens: Int32 = np.add(self.starts[:, None], np.arange(self.length), dtype=np.int32)
        return tokens


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sizes that calls are padded to, ascending."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]  # of a row that has several
    tables: tuple[int, ...]  # blocks of a row's table
    num_blocks: int | None = None  # of the KV; None: whatever rows share, they go in one call

    @classmethod
    def of(
        cls, max_samples: int, max_step_tokens: int, max_context: int, num_blocks: int | None
    ) -> Buckets:
        """Return the buckets of a runner with these limits; with `num_blocks` rows of a call have
        no more pieces than our attention has room for."""
        return cls(
            num_blocks=num_blocks,
            rows=sizes_up_to(max_samples, least=1),
            tokens=sizes_up_to(max_step_tokens, least=_LEAST_CHUNK),
            tables=sizes_up_to(-(-max_context // BLOCK_SIZE), least=_LEAST_CONTEXT),
        )

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Return rows, tokens of each, and blocks of its table, of every call that there may be."""
        calls = [*((rows, 1) for rows in self.rows), *((1, count) for count in self.tokens)]
        return [(*call, width) for call in calls for width in self.tables]

    def calls(self, batch: ForwardBatch) -> Iterator[CompiledCall]:
        """Cut a batch into calls, none beyond the largest buckets."""
        starts, lengths = batch.query_start[:-1], np.diff(batch.query_start)
        single = np.flatnonzero(lengths == 1).astype(np.int32)
        for group in self._groups(single, batch.positions[starts[single]]):
            yield CompiledCall(group, starts[group], 1)
        for row in np.flatnonzero(lengths > 1).astype(np.int32):
            end = starts[row] + lengths[row]
            for start in range(starts[row], end, self.tokens[-1]):
                length = min(int(end) - start, self.tokens[-1])
                yield CompiledCall(np.array([row], np.int32), np.array([start], np.int32), length)

    def _groups(self, rows: Int32, first: Int32) -> Iterator[Int32]:
        """Cut rows of one token, which follow so many cached ones, into those of a call."""
        pieces = -(-first // _PIECE_TOKENS)
        for group in cut(np.arange(len(rows)), self.rows[-1]):
            start = int(group[0])
            for place in group if self._is_beyond(pieces[group]) else ():
                if self._is_beyond(pieces[start : place + 1]):
                    yield rows[start:place]
                    start = int(place)
            yield rows[start : group[-1] + 1]

    def _is_beyond(self, pieces: Int32) -> bool:
        """Return whether our attention has no room for the pieces of so many rows."""
        if self.num_blocks is None:
            return False
        return int(pieces.sum()) > most_pieces(len(pieces), self.num_blocks)

    def inputs(self, batch: ForwardBatch, call: CompiledCall) -> PaddedRows[Int32]:
        """Return a call's rows, padded."""
        first = batch.positions[call.starts]
        used = int(first.max() + call.length - 1) // BLOCK_SIZE + 1
        rows = bucket(len(call.rows), self.rows)
        count = 1 if call.length == 1 else bucket(call.length, self.tokens)
        tables = np.maximum(batch.block_tables[call.rows, :used], 0)
        place = np.full(batch.num_tokens, -1, np.int32)  # in the padded rows
        place[call.tokens] = np.add.outer(np.arange(len(call.rows)) * count, np.arange(call.length))
        samples = np.full(self.rows[-1], -1, np.int32)
        samples[: batch.num_samples] = place[batch.sample_tokens]
        return PaddedRows(
            token_ids=padded(_with_feeds(batch)[call.tokens], (rows, count)),
            first=padded(first, (rows,)),
            lengths=padded(np.full(len(call.rows), call.length, np.int32), (rows,)),
            tables=padded(tables, (rows, bucket(used, self.tables))),
            samples=samples,
        )


def _with_feeds(batch: ForwardBatch) -> Int32:
    """Return a batch's token ids as `PaddedRows` has them."""
    if batch.feeds is None:
        return batch.token_ids
    token_ids = batch.token_ids.copy()
    token_ids[batch.feeds[:, 0]] = -1 - batch.feeds[:, 1]
    return token_ids


def sizes_up_to(largest: int, *, least: int) -> tuple[int, ...]:
    """Return `least` and powers of four times it, below `largest`, and `largest`."""
    sizes = [largest]
    size = least
    while size < largest:
        sizes.append(size)
        size *= 4
    return tuple(sorted(sizes))


def bucket(size: int, sizes: Sequence[int]) -> int:
    """Return the first of the sizes that holds so many."""
    return next(each for each in sizes if each >= size)


def cut(array: NDArray[Scalar], length: int) -> Iterator[NDArray[Scalar]]:
    """Yield pieces of at most `length` rows."""
    for start in range(0, len(array), length):
        yield array[start : start + length]


def padded(array: NDArray[Scalar], shape: tuple[int, ...]) -> NDArray[Scalar]:
    """Return an array filled up with zeros."""
    larger = np.zeros(shape, array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger
