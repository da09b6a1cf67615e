"""Rows that decode in batches of every size: what a captured graph, its padding and the other rows
do to a row. On a GPU up to 64 rows, in the interpreter three."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.core.paged_kv import DEVICE
from tests.core.reference_model import kl_divergence
from tests.core.runners.hand_batches import Piece, check_same_bits_in_any_batch
from tests.core.runners.runner_suite import VOCAB, random_tokens, reference
from tests.core.triton.triton_runners import ATOL, hand_over, logits_of, open_runner
from tests.core.triton.triton_values import check_same

pytest.importorskip("triton")

from bench.device.gpu_reader import other_process

from skerry_core.config import BLOCK_SIZE
from skerry_core.runners.device_sizes import row_buckets
from skerry_core.runners.torch.torch_runner import TorchRunner

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

IS_CUDA = DEVICE.type == "cuda"
MOST = 64 if IS_CUDA else 3
# Those that fill a bucket, and those that are one row into the next.
COUNTS = sorted({*row_buckets(MOST), *(n + 1 for n in row_buckets(MOST))} & set(range(MOST + 1)))
on_a_gpu = pytest.mark.skipif(not IS_CUDA, reason="there is no interpreter of it")


def filled(runner: TorchRunner) -> None:
    """Fill all blocks with keys and values as normal as those of a model."""
    shape = runner.num_blocks, *runner.kv_format.shape
    values = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    runner.admit_blocks(range(runner.num_blocks), values)


def decoding_rows() -> list[Piece]:
    """`MOST` rows over two blocks each, of contexts of one token up to all."""
    rng = np.random.default_rng(3)
    starts = [2 * BLOCK_SIZE - 1, 0, *rng.integers(0, 2 * BLOCK_SIZE, MOST).tolist()]
    return [
        Piece([int(rng.integers(VOCAB))], starts[row], [2 * row + 1, 2 * row])
        for row in range(MOST)
    ]


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [("mistral", True), pytest.param("qwen2", False, marks=pytest.mark.slow)],
)
def test_a_row_is_what_it_is_alone_in_a_batch_of_any_size(
    models: dict[str, Path], name: str, deterministic: bool
) -> None:
    """Windows where bits are the same; biases, and four heads for one of KV, where they may not."""
    runner = open_runner(
        models[name], num_blocks=2 * MOST, max_samples=MOST, deterministic=deterministic
    )
    filled(runner)
    rows = decoding_rows()
    alone = np.concatenate([logits_of(runner, row) for row in rows])
    for count in COUNTS:
        told, expected = logits_of(runner, *rows[-count:]), alone[-count:]
        if deterministic:
            check_same(torch.from_numpy(told), torch.from_numpy(expected))
        else:
            np.testing.assert_allclose(told, expected, rtol=0, atol=ATOL)


@on_a_gpu
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_bits_are_the_same_in_any_chunks_and_batch(models: dict[str, Path], name: str) -> None:
    sizes = {"num_blocks": 22, "max_samples": 256}
    check_same_bits_in_any_batch(open_runner(models[name], deterministic=True, **sizes))


@on_a_gpu
def test_a_gpus_own_dtype_stays_close(models: dict[str, Path]) -> None:
    """bfloat16, through prefill and through a graph."""
    runner, tokens = open_runner(models["llama"], dtype=None), random_tokens(100)
    told = logits_of(runner, Piece(tokens[:99], 0, [3, 1]))
    told = np.concatenate([told[-7:], logits_of(runner, Piece(tokens[99:], 99, [3, 1]))])
    expected = reference(models["llama"]).logits(tokens)[92:]
    assert kl_divergence(expected, told).max() < 1e-3


@on_a_gpu
def test_pages_cross_to_another_process_and_one_that_was_spoilt_does_not(
    models: dict[str, Path],
) -> None:
    runner = open_runner(models["qwen3"])
    hand_over(models["qwen3"], runner, random_tokens(130), [5, 0, 3])
    with closing(runner):
        memory = runner.open_pages(3)
        pages = memory.take(3)
        sums = runner.export_pages([5, 0, 3], pages).tolist()
        blocks = [(page.offset, int(each)) for page, each in zip(pages, sums, strict=True)]
        with other_process(memory, runner.kv_format, 3, DEVICE.index or 0) as seconds:
            assert seconds(blocks) > 0
            spoilt = bytearray(pages[1].to_host())
            spoilt[3000] ^= 16
            memory.device.write(memory.address + pages[1].offset, bytes(spoilt))
            with pytest.raises(RuntimeError, match="the other process ended"):
                seconds(blocks)
