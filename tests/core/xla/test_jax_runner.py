"""The JAX runner beyond the contract: buckets, programs kept on disk, dtypes, builds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paged_kv import paged_rows
from tests.core.random_models import random_weights
from tests.core.reference_model import kl_divergence
from tests.core.runners.runner_suite import (
    CACHE,
    MODELS,
    ROOT,
    Piece,
    batch_of,
    random_tokens,
    reference,
    teacher_forced,
    write_model,
)
from tests.properties import examples

from skerry_core.config import ConfigError
from skerry_core.kernels.jax.pallas_attention import attend_prefix
from skerry_core.kernels.jax.weights import assemble
from skerry_core.kv.canonical import convert
from skerry_core.runners.jax.jax_calls import sizes_up_to
from skerry_core.runners.jax.jax_runner import JaxRunner, mesh_of


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "llama")


def test_buckets_grow_by_four_and_end_where_told() -> None:
    assert sizes_up_to(64, least=1) == (1, 4, 16, 64)
    assert sizes_up_to(300, least=32) == (32, 128, 300)
    assert sizes_up_to(5, least=8) == (5,)


def test_warm_up_leaves_nothing_to_compile_and_keeps_it_on_disk(llama: Path) -> None:
    shares: list[float] = []
    runner = JaxRunner.open(
        llama, cache_dir=CACHE, threads=1, num_blocks=4, max_step_tokens=4, max_samples=4
    )
    runner.warm_up(lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    kept = set((CACHE / "jax").rglob("*"))
    assert any("run_rows" in file.name for file in kept)
    teacher_forced(runner, random_tokens(9), (1, 4, 3, 1), table=[3])
    runner.execute(batch_of(*(Piece([5], 0, [block]) for block in range(4))))
    assert set((CACHE / "jax").rglob("*")) == kept


def test_a_step_takes_the_memory_of_kv_over(llama: Path) -> None:
    """It is donated: there is never a second copy, in a step or when a block arrives."""
    runner = JaxRunner.open(
        llama, cache_dir=CACHE, threads=1, num_blocks=4, max_step_tokens=4, max_samples=4
    )
    before, place = runner._state.kv, runner._state.kv.unsafe_buffer_pointer()
    runner.execute(batch_of(Piece([5], 0, [2])))
    between = runner._state.kv
    runner.admit_block(1, runner.export_block(2))
    assert before.is_deleted()
    assert between.is_deleted()
    assert runner._state.kv.unsafe_buffer_pointer() == place


def test_a_chunk_longer_than_any_bucket_is_cut(llama: Path) -> None:
    """One engine may plan longer steps than another: buckets bound a program, not a step."""
    tokens = random_tokens(130)
    runner = JaxRunner.open(llama, cache_dir=CACHE, threads=1, num_blocks=4, max_samples=512)
    runner._buckets = replace(runner._buckets, tokens=(32, 48))
    logits = teacher_forced(runner, tokens, (130,), table=[3, 1, 0])
    np.testing.assert_allclose(logits, reference(llama).logits(tokens), rtol=0, atol=2e-5)


def test_bfloat16_stays_close_and_takes_converted_blocks(llama: Path) -> None:
    narrow = JaxRunner.open(
        llama, cache_dir=CACHE, threads=1, num_blocks=4, max_samples=512, dtype="bfloat16"
    )
    tokens = random_tokens(150)
    logits = teacher_forced(narrow, tokens, (100, 50), table=[3, 0, 1])
    assert kl_divergence(reference(llama).logits(tokens), logits).max() < 2e-3

    wide = JaxRunner.open(llama, cache_dir=CACHE, threads=1, num_blocks=4, max_samples=512)
    teacher_forced(wide, tokens[:64], (64,), table=[1])
    block = convert(wide.export_block(1), "float32", "bfloat16")
    narrow.admit_block(2, block)
    np.testing.assert_array_equal(narrow.export_block(2), block)


def test_builds_are_told_apart_by_dtype_alone(llama: Path) -> None:
    first, second, narrow = (
        JaxRunner.open(
            llama, cache_dir=CACHE, threads=1, num_blocks=blocks, max_samples=512, dtype=dtype
        )
        for blocks, dtype in ((4, "float32"), (7, "float32"), (4, "bfloat16"))
    )
    assert first.numeric_build == second.numeric_build != narrow.numeric_build


def test_wrong_options_are_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        JaxRunner.open(llama, cache_dir=CACHE, num_blocks=1, threads=0)
    config = MODELS["qwen2"]
    mesh = mesh_of(1)
    tensors = {name: weight.astype(np.int8) for name, weight in random_weights(config).items()}
    weights = assemble(config, tensors, mesh)
    assert weights.embedding.dtype == jnp.int8
    with pytest.raises(ConfigError, match="float32, float16 or bfloat16, got int8"):
        JaxRunner(config, weights, mesh=mesh, num_blocks=1, cache_dir=CACHE)
    with pytest.raises(ConfigError, match="num_devices must be 1 to 1 here, got 2"):
        JaxRunner.open(llama, cache_dir=CACHE, num_blocks=1, num_devices=2)


def test_two_devices_give_what_one_does(subprocess_env: dict[str, str], llama: Path) -> None:
    """Of a CPU; heads, feed-forward networks and vocabularies divided, KV crosses both ways."""
    env = {**subprocess_env, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run(
        [sys.executable, "-m", "tests.core.xla.two_devices", str(llama)],
        env=env,
        cwd=ROOT,
        check=True,
    )


# --- attention in place --------------------------------------------------------------------------


def test_our_kernel_is_taken_by_the_compiler_for_gpus() -> None:
    """Pallas makes Triton's language of it: for capability 9.0, where there is no GPU."""
    shapes = [(2, 5, 2, 3, 64), (4, 2, 9, 2, 64, 64)]
    floats = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    ints = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (2,), (2, 8))]
    attend = jax.jit(partial(attend_prefix, window=100, interpret=False))
    lowered = attend.trace(*floats, *ints).lower(lowering_platforms=("cuda",))
    assert "xla.gpu.triton" in lowered.as_text()


@pytest.mark.parametrize("name", ["mistral", pytest.param("llama", marks=pytest.mark.slow)])
def test_our_kernel_attends_to_blocks_where_they_lie(tmp_path: Path, name: str) -> None:
    """Over blocks in disorder, beside idle ones full of NaN, in chunks and token by token."""
    path, tokens = write_model(tmp_path, name), random_tokens(150)
    runner = JaxRunner.open(
        path, cache_dir=CACHE, threads=1, num_blocks=6, max_samples=512,
        attention="pallas interpreted",
    )  # fmt: skip
    for block in range(6):
        runner.admit_block(block, np.full(runner.kv_format.shape, np.nan, np.float32))
    logits = teacher_forced(runner, tokens, (70, 30, 1, 48, 1), table=[5, 0, 3])
    np.testing.assert_allclose(logits, reference(path).logits(tokens), rtol=0, atol=2e-5)
    runner.execute(batch_of(Piece([5], 0, [1]), Piece(tokens[149:], 149, [5, 0, 3])))
    np.testing.assert_allclose(runner.last_logits()[1], logits[149], rtol=0, atol=2e-5)
    plain = JaxRunner.open(path, cache_dir=CACHE, threads=1, num_blocks=1)
    assert runner.numeric_build != plain.numeric_build


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
    """Parts of the kernel against softmax in NumPy; what sees nothing adds nothing."""
    case = paged_rows(
        heads=kv_heads * group, kv_heads=kv_heads, width=16, contexts=[max(n, 1) for n in cached],
        counts=[1] * len(cached), dtype=torch.float32, seed=seed,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(len(cached), count, kv_heads, group, 16)).astype(np.float32)
    kv, lengths, tables = case.kv[None].cpu().numpy(), np.array(cached), np.maximum(case.tables, 0)
    arrays = [jnp.asarray(a) for a in (q, kv, np.int32(0), lengths.astype(np.int32), tables)]
    part = attend_prefix(*arrays, window=window, interpret=True)
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
