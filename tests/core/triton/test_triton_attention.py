"""Triton's attention kernels against the NumPy reference: shapes by the dozen, NaN beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paged_kv import DEVICE, PagedRows, paged_rows
from tests.core.triton.triton_values import (
    EPS,
    Float64,
    check_same,
    eighths,
    normed,
    random,
    rotary,
    rotated,
    wide,
)
from tests.properties import examples
from torch import Tensor

pytest.importorskip("triton")

from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton import split_attention
from skerry_core.kernels.triton.attention import WHOLE_TILE, Tiles, attend_whole, tile_tokens
from skerry_core.kernels.triton.split_attention import SPLIT_TILE, ContextPieces, attend_split
from skerry_core.kernels.triton.triton_ops import NewHeads
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
    return Tiles(rows, starts, lengths)


def split(
    case: PagedRows, window: int | None, *, scales: Tensor | None = None,
    new: NewHeads | None = None, programs: int = 2,
) -> Tensor:  # fmt: skip
    """Attend in pieces, with so many programs for each KV head."""
    out = torch.empty_like(case.q[:, : case.heads])
    tiles = tiles_of(case.counts, tile_tokens(SPLIT_TILE, case.heads // case.kv_heads))
    host = [part.cpu().numpy() for part in (tiles.rows, tiles.starts, tiles.lengths)]
    found = pieces_of((host[0], host[1], host[2]), case.positions, np.maximum(case.tables, 0))
    arrivals = torch.zeros(len(found.tiles), case.kv_heads, dtype=torch.int32, device=DEVICE)
    pieces = ContextPieces(*map(put, found.arrays), arrivals=arrivals, num_parts=found.num_parts)
    attend_split(
        case.q, case.kv, put(case.positions), tiles, pieces, out, window=window, scales=scales,
        new=new, programs=programs * case.kv_heads,
    )  # fmt: skip
    assert not arrivals.any()  # the next launch counts from zero
    return out


def whole(case: PagedRows, window: int | None, *, scales: Tensor | None = None) -> Tensor:
    out = torch.empty_like(case.q[:, : case.heads])
    tiles = tiles_of(case.counts, tile_tokens(WHOLE_TILE, case.heads // case.kv_heads))
    where = put(case.tables), put(case.positions)
    attend_whole(case.q, case.kv, *where, tiles, out, window=window, scales=scales)
    return out


@pytest.fixture(autouse=True)
def two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge four parts at a time, so that a context of 1,100 tokens takes two levels."""
    monkeypatch.setattr(split_attention, "_MERGED", 4)


rows = st.lists(st.tuples(st.integers(1, 330), st.integers(1, 12)), min_size=1, max_size=2)


@pytest.mark.parametrize("attend", [split, whole])
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
    attend: Callable[[PagedRows, int | None], Tensor], rows: list[tuple[int, int]],
    kv_heads: int, group: int, width: int, window: int | None, dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    case = paged_rows(
        heads=kv_heads * group, kv_heads=kv_heads, width=width, contexts=[n for n, _ in rows],
        counts=[min(n, count) for n, count in rows], dtype=dtype, seed=seed,
    )  # fmt: skip
    attended = attend(case, window).float().cpu().numpy()
    atol = 2e-5 if dtype is torch.float32 else 4e-3
    np.testing.assert_allclose(attended, case.attended(window), rtol=0, atol=atol)


@pytest.mark.parametrize("window", [None, 500])
def test_a_token_has_the_same_bits_beside_others_and_alone(window: int | None) -> None:
    """A tile of many, a tile of one, another row's neighbour, pieces that arrive in another order:
    what `deterministic` relies on."""
    case = paged_rows(
        heads=4, kv_heads=1, width=16, contexts=(1026, 40), counts=(3, 1), dtype=torch.float16,
        seed=3,
    )  # fmt: skip
    together = split(case, window, programs=3)
    np.testing.assert_allclose(wide(together), case.attended(window), rtol=0, atol=4e-3)
    for programs in (1, 5):  # the fifth piece is the fifth, or the first
        assert torch.equal(split(case, window, programs=programs), together)
    for token, (position, row) in enumerate(zip(case.positions, case.owners, strict=True)):
        own = replace(
            case, q=case.q[token : token + 1], tables=case.tables[row : row + 1],
            contexts=(position + 1,), counts=(1,),
        )  # fmt: skip
        check_same(split(own, window)[0], together[token])


in_all_formats = pytest.mark.parametrize("narrow", [None, *LARGEST], ids=str)


@in_all_formats
@settings(max_examples=examples(3), deadline=None)
@given(
    contexts=st.lists(st.sampled_from([1, 2, 64, 65, 256, 257, 600]), min_size=1, max_size=3),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 5),
    width=st.sampled_from([16, 24]),
    window=st.sampled_from([None, 1, 300]),
    is_normed=st.booleans(),
    is_rotated=st.booleans(),
    seed=st.integers(0, 99),
)
def test_new_tokens_are_rotated_stored_and_seen(
    narrow: torch.dtype | None, contexts: list[int], kv_heads: int, group: int, width: int,
    window: int | None, is_normed: bool, is_rotated: bool, seed: int,
) -> None:  # fmt: skip
    """In 8 bits keys and values that these hold, neither normed nor rotated."""
    heads, count = kv_heads * group, len(contexts)
    case = paged_rows(
        heads=heads, kv_heads=kv_heads, width=width, contexts=contexts, counts=[1] * count,
        dtype=torch.float32, seed=seed,
    )  # fmt: skip
    positions, kv, scales = case.positions, case.kv, None
    slots = case.tables[np.arange(count), positions // 64] * 64 + positions % 64
    is_normed, is_rotated = is_normed and narrow is None, is_rotated and narrow is None
    norms = [random(width, seed=seed + 1), random(width, seed=seed + 2)]
    if narrow is not None:
        case.q[:, heads:] = 0.01 * eighths(narrow, count, 2 * kv_heads, width)
        scales = kv.nan_to_num(0.0).abs().amax(-1).clamp(min=1e-12) / LARGEST[narrow]
        kv = (kv.nan_to_num(0.0) / scales[..., None]).to(narrow)
    rope = rotary(width, max(contexts))
    parts = [wide(part) for part in case.q.split([heads, kv_heads, kv_heads], dim=1)]
    for part, norm in zip((0, 1), norms, strict=True):
        if is_normed:
            parts[part] = normed(torch.from_numpy(parts[part]).to(DEVICE), norm)
        if is_rotated:
            parts[part], _ = rotated(parts[part], *(wide(each)[positions] for each in rope))
    q_norm, k_norm = norms if is_normed else (None, None)
    new = NewHeads(put(slots), rope if is_rotated else None, q_norm, k_norm, EPS)

    kept = plain(kv, scales)
    kv[:, slots // 64, :, slots % 64] = 0  # until it is stored
    told = split(replace(case, kv=kv), window, scales=scales, new=new)
    kept[0, slots // 64, :, slots % 64], kept[1, slots // 64, :, slots % 64] = parts[1:]
    np.testing.assert_allclose(plain(kv, scales), kept, rtol=1e-5, atol=1e-5)
    seen = replace(case, q=torch.from_numpy(parts[0]).to(DEVICE), context=context_in(kept, case))
    np.testing.assert_allclose(wide(told), seen.attended(window), rtol=0, atol=3e-5)
    if count > 1:  # the first alone
        kv[:, slots[:1] // 64, :, slots[:1] % 64] = 0
        own = replace(
            case, q=case.q[:1], kv=kv, tables=case.tables[:1], contexts=contexts[:1], counts=(1,)
        )
        alone = split(own, window, scales=scales, new=replace(new, slots=new.slots[:1]))
        assert torch.equal(alone, told[:1])


def plain(kv: Tensor, scales: Tensor | None) -> Float64:
    """The values of KV."""
    return wide(kv) if scales is None else wide(kv.float() * scales[..., None])


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
    expected = replace(case, context=context_in(wide(rounded), case)).attended(window)
    for attend in (split, whole):
        told = attend(replace(case, kv=narrow), window, scales=scales)
        np.testing.assert_allclose(told.float().cpu().numpy(), expected, rtol=0, atol=6e-3)


def context_in(kv: Float64, case: PagedRows) -> tuple[Tensor, ...]:
    """What the rows' tables say of blocks [2, N, Hk, 64, D]: [2, n, Hk, D] of each row."""
    found = []
    for table, length in zip(case.tables, case.contexts, strict=True):
        blocks = kv[:, table[table >= 0]].swapaxes(2, 3)  # [2, M, 64, Hk, D]
        found.append(torch.from_numpy(blocks.reshape(2, -1, *blocks.shape[3:])[:, :length]))
    return tuple(found)
