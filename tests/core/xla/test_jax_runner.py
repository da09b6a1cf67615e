"""The JAX runner beyond the contract: buckets, programs kept on disk, dtypes, builds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.core.open_runners import open_on_jax
from tests.core.random_models import random_weights
from tests.core.reference_model import kl_divergence
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced
from tests.core.runners.runner_suite import (
    CACHE,
    MODELS,
    ROOT,
    random_tokens,
    reference,
    write_model,
)
from tests.core.xla.compilations import compilations

from skerry_core.config import ConfigError, KVDtype
from skerry_core.kernels.jax.weights import assemble, join
from skerry_core.kv.canonical import convert
from skerry_core.runner import HOST_BLOCKS, WantedSizes
from skerry_core.runners.device_sizes import CardMemory, ModelNeed, sizes_of
from skerry_core.runners.jax import jax_loading
from skerry_core.runners.jax.jax_calls import Buckets, sizes_up_to
from skerry_core.runners.jax.jax_process import mesh_of
from skerry_core.runners.jax.jax_runner import JaxRunner


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "llama")


def test_buckets_grow_by_four_and_end_where_told() -> None:
    assert sizes_up_to(64, least=1) == (1, 4, 16, 64)
    assert sizes_up_to(300, least=32) == (32, 128, 300)
    assert sizes_up_to(5, least=8) == (5,)


def test_rows_that_share_blocks_are_cut_by_what_attention_has_room_for() -> None:
    """Of 40 blocks ten pieces, and one for each row: contexts of 600 tokens are three each."""
    row = Piece([5], 600, list(range(10)))
    short, cached = Piece([5], 0, [1]), Piece([5] * 3, 64, [0, 1])
    batch = batch_of(row, short, *(row,) * 7, cached, row)
    for num_blocks, groups in (
        (None, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 10], [9]]),
        (40, [[0, 1, 2, 3, 4, 5], [6, 7], [8, 10], [9]]),
        (9, [[0, 1], [2], [3], [4], [5], [6], [7], [8], [10], [9]]),
    ):
        buckets = Buckets.of(8, 512, 1024, num_blocks)
        assert [call.rows.tolist() for call in buckets.calls(batch)] == groups


def test_sizes_are_what_a_device_has_room_for(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the weights, where our own attention runs; what is said stays."""
    memory = CardMemory(total=1 << 27, free=1 << 27)
    monkeypatch.setattr(jax_loading, "memory_of", lambda devices: [memory])

    def sizes(**said: Any) -> tuple[int, int, int]:
        open_: dict[str, Any] = {"max_step_tokens": None, "max_samples": None} | said
        runner = open_on_jax(llama, cache_dir=CACHE, threads=1, **open_)
        return runner.num_blocks, runner.max_step_tokens, runner.max_samples

    block = 2 * 2 * 2 * 64 * 16 * 4  # layers, K and V, heads, tokens, width, bytes
    need = ModelNeed(config=MODELS["llama"], block_bytes=block, element_bytes=4, is_xla=True)
    found = sizes_of(memory, need, WantedSizes())
    expected = found.num_blocks, found.max_step_tokens, found.max_samples
    assert sizes(attention="pallas interpreted") == expected
    assert expected[0] > HOST_BLOCKS
    assert sizes(attention="pallas interpreted", num_blocks=7, max_samples=3) == (
        7, sizes_of(memory, need, WantedSizes(num_blocks=7, max_samples=3)).max_step_tokens, 3,
    )  # fmt: skip
    assert sizes(attention="xla") == (HOST_BLOCKS, 512, 64)
    with pytest.raises(ConfigError, match="100000 blocks of KV for 64 streams, in steps of"):
        sizes(attention="pallas interpreted", num_blocks=100_000, max_samples=64)


def test_warm_up_leaves_nothing_to_compile_and_keeps_it_on_disk(llama: Path) -> None:
    shares: list[float] = []
    runner = open_on_jax(
        llama, cache_dir=CACHE, threads=1, num_blocks=4, max_step_tokens=4, max_samples=4
    )
    with compilations() as first:
        runner.warm_up(lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert "jit(run_rows)" in first
    assert any("run_rows" in file.name for file in (CACHE / "jax").rglob("*"))
    with compilations() as more:
        teacher_forced(runner, random_tokens(9), (1, 4, 3, 1), table=[3])
        runner.execute(batch_of(*(Piece([5], 0, [block]) for block in range(4))))
    assert more == []


def test_a_step_takes_the_memory_of_kv_over(llama: Path) -> None:
    """It is donated: there is never a second copy, in a step or when a block arrives."""
    runner = open_on_jax(
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
    runner = open_on_jax(llama, cache_dir=CACHE, threads=1, num_blocks=4, max_samples=512)
    runner._buckets = replace(runner._buckets, tokens=(32, 48))
    logits = teacher_forced(runner, tokens, (130,), table=[3, 1, 0])
    np.testing.assert_allclose(logits, reference(llama).logits(tokens), rtol=0, atol=2e-5)


def test_bfloat16_stays_close_and_takes_converted_blocks(llama: Path) -> None:
    narrow = open_on_jax(
        llama, cache_dir=CACHE, threads=1, num_blocks=4, max_samples=512, dtype="bfloat16"
    )
    tokens = random_tokens(150)
    logits = teacher_forced(narrow, tokens, (100, 50), table=[3, 0, 1])
    assert kl_divergence(reference(llama).logits(tokens), logits).max() < 2e-3

    wide = open_on_jax(llama, cache_dir=CACHE, threads=1, num_blocks=4, max_samples=512)
    teacher_forced(wide, tokens[:64], (64,), table=[1])
    block = convert(wide.export_block(1), "float32", "bfloat16")
    narrow.admit_block(2, block)
    np.testing.assert_array_equal(narrow.export_block(2), block)


def test_builds_are_told_apart_by_dtype_alone(llama: Path) -> None:
    sizes: list[tuple[int, KVDtype]] = [(4, "float32"), (7, "float32"), (4, "bfloat16")]
    first, second, narrow = (
        open_on_jax(
            llama, cache_dir=CACHE, threads=1, num_blocks=blocks, max_samples=512, dtype=dtype
        )
        for blocks, dtype in sizes
    )
    assert first.numeric_build == second.numeric_build != narrow.numeric_build


def test_wrong_options_are_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        open_on_jax(llama, cache_dir=CACHE, num_blocks=1, threads=0)
    config = MODELS["qwen2"]
    mesh = mesh_of(1)
    tensors = {name: weight.astype(np.int8) for name, weight in random_weights(config).items()}
    weights = join([assemble(config, tensors)], mesh)
    assert weights.embedding.dtype == jnp.int8
    with pytest.raises(ConfigError, match="float32, float16 or bfloat16, got int8"):
        JaxRunner(config, weights, mesh=mesh, num_blocks=1, cache_dir=CACHE)
    with pytest.raises(ConfigError, match="num_devices must be 1 to 1 here, got 2"):
        open_on_jax(llama, cache_dir=CACHE, num_blocks=1, num_devices=2)


def test_two_devices_give_what_one_does(subprocess_env: dict[str, str], llama: Path) -> None:
    """Of a CPU; heads, feed-forward networks and vocabularies divided, KV crosses both ways."""
    env = {**subprocess_env, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    subprocess.run(
        [sys.executable, "-m", "tests.core.xla.two_devices", str(llama)],
        env=env,
        cwd=ROOT,
        check=True,
    )
