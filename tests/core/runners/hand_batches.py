"""Batches by hand, teacher forcing, and the same bits whatever is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from bench.subjects.samples import samples_of
from tests.core.runners.runner_suite import StepRunner, random_tokens

from skerry_core.batch import Float32, ForwardBatch


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one sequence, from position `start` on."""

    token_ids: Sequence[int]
    start: int
    table: Sequence[int]  # the sequence's blocks


def batch_of(*pieces: Piece) -> ForwardBatch:
    """A greedy step of these rows that samples every token."""
    lengths = [len(piece.token_ids) for piece in pieces]
    count, width = sum(lengths), max(len(piece.table) for piece in pieces)
    tables = np.full((len(pieces), width), -1, np.int32)
    for row, piece in enumerate(pieces):
        tables[row, : len(piece.table)] = piece.table
    return ForwardBatch(
        token_ids=np.concatenate([np.array(p.token_ids, np.int32) for p in pieces]),
        positions=np.concatenate(
            [np.arange(p.start, p.start + len(p.token_ids), dtype=np.int32) for p in pieces]
        ),
        query_start=np.cumsum([0, *lengths]).astype(np.int32),
        block_tables=tables,
        sample_tokens=np.arange(count, dtype=np.int32),
        sampling=samples_of(count, position=np.arange(count)),
    )


def teacher_forced(
    runner: StepRunner,
    token_ids: Sequence[int],
    chunks: Sequence[int],
    table: Sequence[int],
    start: int = 0,
) -> Float32:
    """Logits f32[T, V] of tokens that run in these chunks, over these blocks.

    They are a whole sequence, or what follows its first `start` tokens.
    """
    assert sum(chunks) == len(token_ids)
    logits, done = [], 0
    for length in chunks:
        runner.execute(batch_of(Piece(token_ids[done : done + length], start + done, table)))
        logits.append(runner.last_logits().copy())
        done += length
    return np.concatenate(logits)


def check_same_bits_in_any_batch(runner: StepRunner) -> None:
    """A sequence alone, in other chunks, and among others; needs 22 blocks."""
    tokens = random_tokens(100)
    alone = teacher_forced(runner, tokens, (100,), table=[0, 1])
    for chunks in ((1,) * 100, (64, 36), (3, 50, 13, 1, 33)):
        np.testing.assert_array_equal(teacher_forced(runner, tokens, chunks, [3, 9]), alone)

    others = [
        Piece(random_tokens(n, seed=n), 0, table)
        for n, table in ((5, [10]), (33, [11]), (90, [12, 13]))
    ]
    start, logits = 0, []
    for length, place in ((40, 3), (20, 2), (3, 0), (1, 1), (1, 2), (1, 3), (34, 1)):
        rows = others.copy()
        rows.insert(place, Piece(tokens[start : start + length], start, [20, 21]))
        before = sum(len(row.token_ids) for row in rows[:place])
        runner.execute(batch_of(*rows))
        logits.append(runner.last_logits()[before : before + length].copy())
        start += length
    np.testing.assert_array_equal(np.concatenate(logits), alone)
