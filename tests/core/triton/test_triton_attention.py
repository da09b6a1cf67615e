"""Triton's attention kernels against the NumPy reference: shapes by the dozen, NaN beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paged_kv import DEVICE, PagedRows, paged_rows
from tests.core.triton.triton_values import check_same
from tests.properties import examples
from torch import Tensor

pytest.importorskip("triton")

from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton.attention import (
    SPLIT_TILE,
    WHOLE_TILE,
    ContextPieces,
    Tiles,
    attend_split,
    attend_whole,
    tile_tokens,
)
from skerry_core.runners.torch.triton_arrangement import pieces_of

pytestmark = [pytest.mark.gpu, pytest.mark.triton]


def put(values: Sequence[int] | np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(values, np.int32)).to(DEVICE)


def tiles_of(counts: Sequence[int], most: int) -> Tiles:
    """Tiles of rows of so many tokens, and one of padding."""
    found = [(0, 0, 0)]
    start = 0
    for row, count in enumerate(counts):
        found += [(row, start + i, min(most, count - i)) for i in range(0, count, most)]
        start += count
    rows, starts, lengths = (put(column) for column in zip(*found, strict=True))
    return Tiles(rows, starts, lengths, longest=max(n for *_, n in found))


def pieces_on(
    device: torch.device, tiles: Tiles, positions: np.ndarray[Any, Any], tables: Any
) -> ContextPieces:
    """All pieces of tiles."""
    host = [part.cpu().numpy() for part in (tiles.rows, tiles.starts, tiles.lengths)]
    found = pieces_of((host[0], host[1], host[2]), positions, np.maximum(tables, 0))
    arrays = [torch.from_numpy(array).to(device) for array in found.arrays]
    owners, indices, blocks, parts, count = arrays
    return ContextPieces(owners, indices, blocks, parts, count, found.num_parts)


def attend(
    case: PagedRows, window: int | None, *, is_split: bool, scales: Tensor | None = None
) -> Tensor:
    out = torch.empty(len(case.positions), case.heads, case.width, device=DEVICE)
    out = out.to(case.q.dtype)
    group = case.heads // case.kv_heads
    tiles = tiles_of(case.counts, tile_tokens(SPLIT_TILE if is_split else WHOLE_TILE, group))
    positions = put(case.positions)
    if is_split:
        pieces = pieces_on(DEVICE, tiles, case.positions, case.tables)
        attend_split(
            case.q, case.kv, positions, tiles, pieces, out, window=window, scales=scales,
            programs=2 * case.kv_heads,
        )  # fmt: skip
    else:
        tables = put(case.tables)
        attend_whole(case.q, case.kv, tables, positions, tiles, out, window=window, scales=scales)
    return out


rows = st.lists(st.tuples(st.integers(1, 330), st.integers(1, 12)), min_size=1, max_size=2)


@pytest.mark.parametrize("is_split", [True, False], ids=["split", "whole"])
@settings(max_examples=examples(4), deadline=None)
@given(
    rows=rows,
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 7),
    width=st.sampled_from([16, 24, 64, 80, 128]),
    window=st.sampled_from([None, 1, 70, 300]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_every_shape_gives_what_the_reference_does(
    is_split: bool, rows: list[tuple[int, int]], kv_heads: int, group: int, width: int,
    window: int | None, dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    case = paged_rows(
        heads=kv_heads * group, kv_heads=kv_heads, width=width, contexts=[n for n, _ in rows],
        counts=[min(n, count) for n, count in rows], dtype=dtype, seed=seed,
    )  # fmt: skip
    attended = attend(case, window, is_split=is_split).float().cpu().numpy()
    atol = 2e-5 if dtype is torch.float32 else 4e-3
    np.testing.assert_allclose(attended, case.attended(window), rtol=0, atol=atol)


@pytest.mark.parametrize("window", [None, 90])
def test_a_token_has_the_same_bits_beside_others_and_alone(window: int | None) -> None:
    """A tile of many, a tile of one, another row's neighbour: what `deterministic` relies on."""
    case = paged_rows(
        heads=4, kv_heads=2, width=16, contexts=(265, 40), counts=(3, 1), dtype=torch.float16,
        seed=3,
    )  # fmt: skip
    together = attend(case, window, is_split=True)
    for token, (position, row) in enumerate(zip(case.positions, case.owners, strict=True)):
        own = put([0])
        tiles = Tiles(own, own, put([1]), 1)
        alone = torch.empty_like(together[:1])
        attend_split(
            case.q[token : token + 1], case.kv, put([position]), tiles,
            pieces_on(DEVICE, tiles, np.array([position]), case.tables[row : row + 1]), alone,
            window=window,
        )  # fmt: skip
        check_same(alone[0], together[token])


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@settings(max_examples=examples(2), deadline=None)
@given(
    rows=rows,
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 7),
    width=st.sampled_from([16, 24, 64]),
    window=st.sampled_from([None, 70]),
)
def test_keys_and_values_in_eight_bits_count_times_their_scales(
    dtype: torch.dtype, rows: list[tuple[int, int]], kv_heads: int, group: int, width: int,
    window: int | None,
) -> None:  # fmt: skip
    case = paged_rows(
        heads=kv_heads * group, kv_heads=kv_heads, width=width, contexts=[n for n, _ in rows],
        counts=[min(n, count) for n, count in rows], dtype=torch.float16, seed=5,
    )  # fmt: skip
    scales = case.kv.nan_to_num(0.0).float().abs().amax(-1).clamp(min=1e-12) / LARGEST[dtype]
    narrow = (case.kv.nan_to_num(0.0).float() / scales[..., None]).to(dtype)
    rounded = narrow.float() * scales[..., None]
    expected = replace(case, context=context_in(rounded, case)).attended(window)
    for is_split in (True, False):
        told = attend(replace(case, kv=narrow), window, is_split=is_split, scales=scales)
        np.testing.assert_allclose(told.float().cpu().numpy(), expected, rtol=0, atol=6e-3)


def context_in(kv: Tensor, case: PagedRows) -> tuple[Tensor, ...]:
    """What the rows' tables say of blocks [2, N, Hk, 64, D]: [2, n, Hk, D] of each row."""
    found = []
    for table, length in zip(case.tables, case.contexts, strict=True):
        blocks = kv[:, table[table >= 0].tolist()].swapaxes(2, 3)  # [2, M, 64, Hk, D]
        found.append(blocks.flatten(1, 2)[:, :length])
    return tuple(found)
