"""One prompt, one seed, one answer: a token's logits are the same bits however they are computed.

On a small random model with odd shapes always, and on the real one where it is at hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import xxhash
from tests.core.cpu.numba_steps import Float32, Row, logits_of, prefill, table_for
from tests.core.random_models import quantize_matrices, random_weights, write_gguf

from skerry_core.config import BLOCK_SIZE, LayerConfig, ModelConfig
from skerry_core.kernels.simd.targets import TARGETS, _is_supported
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_regions.models.model_files import ModelFiles

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry")) / "cache"

SMALL = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(),) * 3,
    hidden_size=160,
    intermediate_size=224,
    num_heads=4,
    num_kv_heads=2,
    head_dim=80,
    vocab_size=1003,
    max_context=640,
)
CHUNKS = [1, 3, 7, 16, 512]  # tiles are of 8, 4, 2 and 1 tokens, panels of 6, 4 and 2
CHUNKS_TOO = [2, 4, 5, 6, 8, 64]
TABLE = table_for(512, first=40)


def open_runner(weights: Path, **options: int | str) -> NumbaRunner:
    settings = {"num_blocks": 96, "max_samples": 512} | options
    return NumbaRunner.open(weights, cache_dir=CACHE, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return write_gguf(path, SMALL, random_weights(SMALL), quantize_matrices("Q4_1"))


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=pytest.mark.model)])
def weights(request: pytest.FixtureRequest, small_weights: Path) -> Path:
    if request.param == "small":
        return small_weights
    files: ModelFiles = request.getfixturevalue("default_model")
    return files.weights


@pytest.fixture(scope="module")
def runner(weights: Path) -> Iterator[NumbaRunner]:
    opened = open_runner(weights, threads=2)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def token_ids(runner: NumbaRunner) -> list[int]:
    rng = np.random.default_rng(5)
    return [int(t) for t in rng.integers(0, runner.model.vocab_size, 512)]


@pytest.fixture(scope="module")
def whole(runner: NumbaRunner, token_ids: list[int]) -> Float32:
    """Logits of all 512 tokens from one prefill: what every other way must equal."""
    return prefill(runner, token_ids, TABLE, 512)


def assert_same_bits(got: Float32, wanted: Float32) -> None:
    np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize(
    "chunk", [*CHUNKS, *(pytest.param(each, marks=pytest.mark.slow) for each in CHUNKS_TOO)]
)
def test_any_chunk(runner: NumbaRunner, token_ids: list[int], whole: Float32, chunk: int) -> None:
    count = min(512, 20 * chunk + 72)  # small chunks take many steps
    got = prefill(runner, token_ids[:count], table_for(count, first=60), chunk)
    assert_same_bits(got, whole[:count])


def test_at_any_row_of_a_batch(runner: NumbaRunner, token_ids: list[int], whole: Float32) -> None:
    """A decode row among fifteen others of other lengths, at each of the sixteen places."""
    position = 130
    prefill(runner, token_ids[:position], table_for(position + 1, first=0), 64)
    others = []
    for index in range(15):
        length = 1 + 11 * index
        tokens = token_ids[index : index + length + 1]
        table = table_for(length + 1, first=3 + 3 * index)
        prefill(runner, tokens[:length], table, 64)
        others.append(Row(tokens[length:], length, table))
    ours = Row([token_ids[position]], position, table_for(position + 1, first=0))
    alone = logits_of(runner, [ours])
    assert_same_bits(alone, whole[position : position + 1])
    for place in range(16):
        rows = [*others[:place], ours, *others[place:]]
        assert_same_bits(logits_of(runner, rows)[place : place + 1], alone)


def test_rows_that_share_a_prefix(
    runner: NumbaRunner, token_ids: list[int], whole: Float32
) -> None:
    """Decode rows over the same blocks, then over their own; some share more than others."""
    shared = table_for(192, first=0)
    prefill(runner, token_ids[:192], shared, 64)
    rows, wanted = [], []
    for index, length in enumerate([128, 130, 131, 200, 201, 150, 260, 129, 300]):
        blocks = 3 if length > 192 else 2
        own = range(10 + 4 * index, 10 + 4 * index + 4)
        table = [*shared[:blocks], *own][: length // BLOCK_SIZE + 1]
        if length > 64 * blocks:
            logits_of(runner, [Row(token_ids[64 * blocks : length], 64 * blocks, table)])
        drafts = 1 + index % 3
        row = Row(token_ids[length : length + drafts], length, table, range(drafts))
        rows.append(row)
        wanted.append(whole[length : length + drafts])
    apart = Row([token_ids[0]], 0, [60])
    read = []
    for order in ([*rows, apart], [apart, *rows[::-1]], rows[:1]):
        got = logits_of(runner, order)
        read.append(int(runner._step.views[0]["visits"]))
        parts = {id(row): part for row, part in zip(rows, wanted, strict=True)}
        assert_same_bits(got, np.concatenate([parts.get(id(row), whole[:1]) for row in order]))
    assert read[0] == read[1] == sum(len(row.table) for row in rows) - 2 * 8 + 1
    assert read[2] == len(rows[0].table)


def test_decode_mixed_with_prefill(
    runner: NumbaRunner, token_ids: list[int], whole: Float32
) -> None:
    ours, theirs = table_for(200, first=0), table_for(300, first=10)
    prefill(runner, token_ids[:99], ours, 512)
    for step in range(4):
        decode = Row([token_ids[99 + step]], 99 + step, ours)
        first = 70 * step
        chunk = Row(token_ids[first : first + 70], first, theirs, range(70))
        logits = logits_of(runner, [chunk, decode] if step % 2 else [decode, chunk])
        split = 70 if step % 2 else 0
        assert_same_bits(logits[split if step % 2 else 0][None], whole[99 + step : 100 + step])
        chunk_logits = logits[:70] if step % 2 else logits[1:]
        assert_same_bits(chunk_logits, whole[first : first + 70])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(
    weights: Path, token_ids: list[int], whole: Float32, threads: int
) -> None:
    """Also where one token's context is divided among them."""
    other = open_runner(weights, threads=threads)
    assert_same_bits(prefill(other, token_ids[:270], TABLE, 135), whole[:270])
    assert_same_bits(logits_of(other, [Row([token_ids[270]], 270, TABLE)]), whole[270:271])
    num_tasks = other._step.views[0]["num_tasks"]
    assert (num_tasks > 1) == (other._step.record["num_threads"] > 1)
    other.close()


def test_fewer_threads_for_some_steps(weights: Path, token_ids: list[int], whole: Float32) -> None:
    """As while one of them has no core of its own."""
    other = open_runner(weights, threads=3)
    ran = []
    for step in range(9):
        for _ in range(2 * bool(step % 3)):
            other._team_size.note(1.0, 1.0)
        first = 30 * step
        rows = [Row(token_ids[first : first + 30], first, TABLE, range(30))]
        assert_same_bits(logits_of(other, rows), whole[first : first + 30])
        ran.append(int(other._step.record["num_threads"]))
    assert min(ran) < 3
    other.close()


def test_from_a_copied_prefix(
    runner: NumbaRunner, weights: Path, token_ids: list[int], whole: Float32
) -> None:
    """Blocks exported by one runner and admitted by another, into other places."""
    prefill(runner, token_ids[:128], table_for(128, first=0), 128)
    source = table_for(128, first=0)
    other = open_runner(weights, threads=1)
    table = [7, 2, 9]
    for there, here in zip(table[:2], source, strict=True):
        block = runner.export_block(here)
        other.admit_block(there, block)
        np.testing.assert_array_equal(other.export_block(there), block)
    rest = token_ids[128:180]
    got = logits_of(other, [Row(rest, 128, table, range(len(rest)))])
    assert_same_bits(got, whole[128:180])
    other.close()


def test_the_last_token_of_a_cached_prompt(
    runner: NumbaRunner, token_ids: list[int], whole: Float32
) -> None:
    """Recomputing a token over its own slot changes nothing, in the logits or in the block."""
    table = table_for(128, first=0)
    prefill(runner, token_ids[:128], table, 128)
    before = runner.export_block(table[1])
    assert_same_bits(logits_of(runner, [Row([token_ids[127]], 127, table)]), whole[127:128])
    np.testing.assert_array_equal(runner.export_block(table[1]), before)


@pytest.mark.parametrize(
    "target",  # AVX2's code is compared below in every run, compiled for a CPU that has no more,
    # and each kernel of `portable` in `test_numba_kernels` and `test_numba_products`
    [pytest.param(t, marks=[pytest.mark.slow] * (t in ("avx2", "portable"))) for t in TARGETS],
)
def test_any_target(
    runner: NumbaRunner, weights: Path, token_ids: list[int], whole: Float32, target: str
) -> None:
    if not _is_supported(target, llvm.get_host_cpu_features()):
        pytest.skip(f"this CPU cannot run {target}")
    other = open_runner(weights, threads=2, target=target)
    assert other.numeric_build == runner.numeric_build
    assert_same_bits(prefill(other, token_ids[:70], TABLE, 69), whole[:70])
    other.close()


AVX2 = "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe"


@pytest.mark.parametrize(
    ("cpu", "features"),
    [
        ("haswell", AVX2),
        pytest.param("znver3", AVX2, marks=pytest.mark.slow),
        pytest.param("x86-64", "+sse4.2", marks=pytest.mark.slow),
    ],
    ids=lambda value: value.split(",")[0],
)
def test_compiled_for_another_cpu(
    small_weights: Path, subprocess_env: dict[str, str], cpu: str, features: str
) -> None:
    """In a process of its own, since numba reads these settings once. x86-64 has no fma at all."""
    if not _is_supported("avx2", llvm.get_host_cpu_features()):
        pytest.skip("needs an x86 with AVX2")
    environment = subprocess_env | {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
    command = [sys.executable, __file__, str(small_weights)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == fingerprint(small_weights)


def fingerprint(weights: Path) -> str:
    """Hash of the logits of some tokens."""
    runner = open_runner(weights, threads=1)
    token_ids = [7 * i % runner.model.vocab_size for i in range(100)]
    logits = prefill(runner, token_ids, TABLE, 67)
    runner.close()
    return xxhash.xxh3_128_hexdigest(logits.tobytes())


if __name__ == "__main__":
    sys.stdout.write(fingerprint(Path(sys.argv[1])))
