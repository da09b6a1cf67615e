"""The JAX runner's attention in place: our kernels in Pallas, interpreted, and lowered for GPUs."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.open_runners import open_on_jax
from tests.core.paged_kv import paged_rows
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced
from tests.core.runners.runner_suite import CACHE, random_tokens, reference, write_model
from tests.properties import examples

from skerry_core.kernels.jax import pallas_split
from skerry_core.kernels.jax.pallas_attention import attend_prefix
from skerry_core.kernels.jax.pallas_split import pieces_of


@pytest.mark.parametrize(("count", "group"), [(5, 3), (1, 3), (1, 7)])
def test_our_kernels_are_taken_by_the_compiler_for_gpus(count: int, group: int) -> None:
    """Pallas makes Triton's language of them: for capability 9.0, where there is no GPU."""

    def attend(*arrays: jax.Array) -> object:
        first, tables = arrays[3:]
        pieces = pieces_of(first, tables, 100, 8) if count == 1 else None
        return attend_prefix(*arrays, window=100, interpret=False, pieces=pieces)

    shapes = [(2, count, 2, group, 64), (4, 2, 9, 2, 64, 64)]
    floats = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    ints = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (2,), (2, 8))]
    lowered = jax.jit(attend).trace(*floats, *ints).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("xla.gpu.triton") == (2 if count == 1 else 1)


@pytest.mark.parametrize("name", ["mistral", pytest.param("llama", marks=pytest.mark.slow)])
def test_our_kernel_attends_to_blocks_where_they_lie(tmp_path: Path, name: str) -> None:
    """Over blocks in disorder, beside idle ones full of NaN, in chunks and token by token."""
    path, tokens = write_model(tmp_path, name), random_tokens(150)
    runner = open_on_jax(
        path, cache_dir=CACHE, threads=1, num_blocks=6, max_samples=512,
        attention="pallas interpreted",
    )  # fmt: skip
    for block in range(6):
        runner.admit_block(block, np.full(runner.kv_format.shape, np.nan, np.float32))
    logits = teacher_forced(runner, tokens, (70, 30, 1, 48, 1), table=[5, 0, 3])
    np.testing.assert_allclose(logits, reference(path).logits(tokens), rtol=0, atol=2e-5)
    runner.execute(batch_of(Piece([5], 0, [1]), Piece(tokens[149:], 149, [5, 0, 3])))
    np.testing.assert_allclose(runner.last_logits()[1], logits[149], rtol=0, atol=2e-5)
    plain = open_on_jax(path, cache_dir=CACHE, threads=1, num_blocks=1)
    assert runner.numeric_build != plain.numeric_build


@pytest.mark.slow
def test_rows_that_share_blocks_have_more_pieces_than_a_call(tmp_path: Path) -> None:
    """Five of 320 tokens have two pieces each, and ten blocks of KV have two and one for each."""
    path, tokens = write_model(tmp_path, "llama"), random_tokens(325)
    runner = open_on_jax(
        path, cache_dir=CACHE, threads=1, num_blocks=10, max_samples=512,
        attention="pallas interpreted",
    )  # fmt: skip
    shared, ends = list(range(5)), tokens[320:]
    teacher_forced(runner, tokens[:320], (320,), table=shared)
    batch = batch_of(*(Piece([end], 320, [*shared, 5 + i]) for i, end in enumerate(ends)))
    assert [len(call.rows) for call in runner._buckets.calls(batch)] == [2, 2, 1]
    runner.execute(batch)
    logits = runner.last_logits()
    for row, end in enumerate(ends):
        expected = reference(path).logits([*tokens[:320], end])[320]
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=2e-5)


@settings(max_examples=examples(2), deadline=None)
@given(
    cached=st.lists(st.integers(0, 200), min_size=1, max_size=2),
    count=st.integers(1, 20),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 5),
    window=st.sampled_from([None, 1, 70]),
    seed=st.integers(0, 99),
)
def test_prefixes_of_every_shape(
    cached: list[int], count: int, kv_heads: int, group: int, window: int | None, seed: int
) -> None:
    check_parts(cached, count, kv_heads, group, window, seed)


@settings(max_examples=examples(2), deadline=None)
@given(
    cached=st.lists(st.integers(0, 700), min_size=3, max_size=3),
    group=st.integers(1, 16),
    window=st.sampled_from([None, 1, 70, 300]),
    programs=st.sampled_from([1, 512]),
    seed=st.integers(0, 99),
)
def test_contexts_in_pieces(
    cached: list[int], group: int, window: int | None, programs: int, seed: int
) -> None:
    """One program for each head goes through all pieces; many have one each, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pallas_split, "_PROGRAMS", programs)
        check_parts(cached, 1, 1, group, window, seed, in_pieces=True)


def check_parts(
    cached: list[int], count: int, kv_heads: int, group: int, window: int | None, seed: int,
    in_pieces: bool = False,
) -> None:  # fmt: skip
    """Parts of the kernel against softmax in NumPy; what sees nothing adds nothing."""
    case = paged_rows(
        heads=kv_heads * group, kv_heads=kv_heads, width=16, contexts=[max(n, 1) for n in cached],
        counts=[1] * len(cached), dtype=torch.float32, seed=seed,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(len(cached), count, kv_heads, group, 16)).astype(np.float32)
    kv, lengths, tables = case.kv[None].cpu().numpy(), np.array(cached), np.maximum(case.tables, 0)
    arrays = [jnp.asarray(a) for a in (q, kv, np.int32(0), lengths.astype(np.int32), tables)]
    pieces = pieces_of(arrays[3], arrays[4], window, kv.shape[3]) if in_pieces else None
    part = attend_prefix(*arrays, window=window, interpret=True, pieces=pieces)
    for row, token in np.ndindex(q.shape[:2]):
        position = cached[row] + token
        first = max(0, position - window + 1) if window else 0
        keys, values = case.context[row][:, first : cached[row]].cpu().numpy()
        scores = np.einsum("kgd,skd->kgs", q[row, token], keys)
        largest = scores.max(-1, initial=-np.inf)
        np.testing.assert_allclose(part.largest[row, token], largest, rtol=1e-5, atol=1e-5)
        shares = np.exp(scores - np.where(np.isfinite(largest), largest, 0)[..., None])
        np.testing.assert_allclose(part.total[row, token], shares.sum(-1), rtol=1e-4)
        mixed = np.einsum("kgs,skd->kgd", shares, values)
        np.testing.assert_allclose(part.mixed[row, token], mixed, rtol=1e-4, atol=1e-5)
