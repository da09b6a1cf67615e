"""Steps as Triton's kernels want them: what the host makes of a batch, and its padding."""

from __future__ import annotations

import pytest
from tests.core.runners.hand_batches import Piece, batch_of

pytest.importorskip("triton")

from skerry_core.runners.torch.triton_arrangement import arrange, most_pieces, pad

pytestmark = pytest.mark.triton


def test_a_graph_lists_what_blocks_hold_and_more_where_rows_share_them() -> None:
    assert most_pieces(4, num_blocks=1000, max_context=512) == 8  # two are a context
    assert most_pieces(200, num_blocks=12_800, max_context=131_072) == 6400  # 32 a row
    assert most_pieces(200, num_blocks=64_000, max_context=131_072) == 16_200  # what blocks hold


def test_one_long_context_adds_its_own_pieces_alone() -> None:
    """199 rows of 500 tokens and one of 100,000: two pieces each, and 391."""
    blocks = list(range(1563))
    rows = [Piece([1], 499, blocks[:8]) for _ in range(199)]
    pieces = arrange(batch_of(*rows, Piece([1], 99_999, blocks)), 4, is_invariant=False).pieces
    assert pieces.count.tolist() == [2 * 199 + 391]
    assert pieces.num_parts == 2 * 199 + 391
    longest = pieces.tiles == 0  # longest contexts first
    assert pieces.indices[longest].tolist() == list(range(391))
    assert pieces.blocks[longest].ravel()[:1563].tolist() == blocks


def test_rows_are_cut_into_tiles_and_tokens_find_their_slots() -> None:
    batch = batch_of(Piece([1], 300, [3, 1, 4, 0, 9]), Piece([5] * 40, 62, [7, 6]))
    step = arrange(batch, 3, is_invariant=False)
    assert step.slots.tolist() == [9 * 64 + 44, 7 * 64 + 62, 7 * 64 + 63, *range(384, 422)]
    assert [column.tolist() for column in step.split_tiles] == [[0], [0], [1]]
    assert [column.tolist() for column in step.whole_tiles] == [[1], [1], [40]]
    assert [array.tolist() for array in step.pieces.arrays] == [
        [0, 0], [0, 1], [[3, 1, 4, 0], [9, 9, 9, 9]], [0], [2]
    ]  # fmt: skip
    invariant = arrange(batch, 3, is_invariant=True)
    assert invariant.split_tiles[2].sum() == 41
    assert invariant.split_tiles[2].max() == 5  # tiles of 16 rows, 3 for each token
    assert len(invariant.whole_tiles[0]) == 0


def test_the_padding_of_a_step_writes_to_the_scratch_block_and_reads_it() -> None:
    batch = batch_of(Piece([1], 300, [3, 1, 4, 0, 9]), Piece([5], 62, [7]))
    step = pad(arrange(batch, 2, is_invariant=False), 4, 9, scratch=12)
    assert step.token_ids.tolist() == [1, 5, 0, 0]
    assert step.slots.tolist() == [9 * 64 + 44, 7 * 64 + 62, 12 * 64, 12 * 64]
    assert step.pieces.count.tolist() == [5]  # three, and one of each row of padding
    assert step.pieces.tiles[:5].tolist() == [0, 1, 1, 2, 3]
    assert step.pieces.indices[:5].tolist() == [0, 0, 1, 0, 0]
    assert step.pieces.blocks[[0, 1, 3, 4]].tolist() == [
        [7, 0, 0, 0], [3, 1, 4, 0], [12] * 4, [12] * 4
    ]  # fmt: skip
    assert step.pieces.parts.tolist() == [0, 1, 3, 4]
    assert [sorted(column.tolist()) for column in step.split_tiles] == [[0, 1, 2, 3]] * 2 + [
        [1] * 4
    ]
    shapes = [array.shape for array in step.arrays]
    other = pad(arrange(batch_of(Piece([1], 3, [2])), 2, is_invariant=False), 4, 9, scratch=12)
    assert [array.shape for array in other.arrays] == shapes
