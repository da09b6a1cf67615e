from __future__ import annotations

import numpy as np
import pytest
from tests.core.toy_oracle import request, sampling_batch

from skerry_core.batch import ForwardBatch
from skerry_core.runner import ModelRunner
from skerry_core.runners.toy import ToyRunner, next_token


def batch(tokens: list[int], start: int, block_table: list[int]) -> ForwardBatch:
    """A row of one sequence; its last token is sampled."""
    end = start + len(tokens)
    return ForwardBatch(
        token_ids=np.array(tokens, np.int32),
        positions=np.arange(start, end, dtype=np.int32),
        query_start=np.array([0, len(tokens)], np.int32),
        block_tables=np.array([block_table], np.int32),
        sample_tokens=np.array([len(tokens) - 1], np.int32),
        sampling=sampling_batch(request(), []),
    )


def test_the_model_is_a_sum_that_can_be_checked_by_hand() -> None:
    assert next_token(np.array([5, 7, 11]), 257) == 1 * 5 + 2 * 7 + 3 * 11


def test_it_reads_tokens_back_through_the_block_table() -> None:
    runner: ModelRunner = ToyRunner(num_blocks=4)
    tokens = [(3 * i) % 257 for i in range(130)]
    runner.execute(batch(tokens[:100], 0, [2, 0]))
    result = runner.execute(batch(tokens[100:], 100, [2, 0, 3]))
    right = next_token(np.array(tokens), 257)
    assert result.token_ids.tolist() == [right]
    assert runner.last_logits()[0, right] == 0.0
    runner.execute(batch(tokens[:100], 0, [2, 0]))
    wrong = runner.execute(batch(tokens[100:], 100, [0, 2, 3]))
    assert wrong.token_ids.tolist() != [right]


def test_slots_that_nobody_wrote_are_no_token() -> None:
    fresh, used = ToyRunner(num_blocks=1), ToyRunner(num_blocks=1)
    used.execute(batch([0], 0, [0]))
    lost = fresh.execute(batch([5], 1, [0]))
    assert lost.token_ids.tolist() != used.execute(batch([5], 1, [0])).token_ids.tolist()


def test_a_position_outside_the_block_table_is_an_error() -> None:
    runner = ToyRunner(num_blocks=2)
    with pytest.raises(ValueError, match=r"blocks must be in \[0, 2\)"):
        runner.execute(batch([1], 64, [0, -1]))


def test_blocks_of_another_shape_or_dtype_are_refused() -> None:
    runner = ToyRunner(num_blocks=1, dtype="bfloat16")
    block = runner.export_block(0)
    assert block.shape == runner.kv_format.shape
    assert block.nbytes == runner.kv_format.block_bytes
    runner.admit_block(0, block)
    for wrong in (block[:1], block.astype(np.float32)):
        with pytest.raises(ValueError, match="expected a block of uint16"):
            runner.admit_block(0, wrong)
