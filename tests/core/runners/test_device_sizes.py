"""What a device's memory has room for, worked out by hand; a runner on a stub of one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.core.open_runners import open_on_torch
from tests.core.runners.runner_suite import write_model

from skerry_core.config import BLOCK_SIZE, ConfigError, LayerConfig, ModelConfig
from skerry_core.runner import HOST_BLOCKS, RunnerSizes, WantedSizes
from skerry_core.runners.device_sizes import (
    GATHERED,
    PIECE_BLOCKS,
    CardMemory,
    ModelNeed,
    row_buckets,
    sizes_of,
)
from skerry_core.runners.torch import opening
from skerry_core.runners.torch.opening import TorchOptions, need_of

GIB = 1 << 30
LLAMA_8B = ModelConfig(
    architecture="llama", layers=(LayerConfig(),) * 32, hidden_size=4096, intermediate_size=14_336,
    num_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128_256, max_context=131_072,
)  # fmt: skip
BLOCK = 32 * 2 * 8 * 64 * 128 * 2  # 8 MiB
NEED = ModelNeed(config=LLAMA_8B, block_bytes=BLOCK, element_bytes=2)
INVARIANT = ModelNeed(config=LLAMA_8B, block_bytes=BLOCK, element_bytes=2, is_invariant=True)
XLA = ModelNeed(config=LLAMA_8B, block_bytes=BLOCK, element_bytes=2, is_xla=True)
TOKEN = 2 * (4 * 4096 + 2 * (32 + 8) * 128 + 3 * 14_336)  # 139,264 bytes
PART = 4 * 32 * 130  # of a token and a piece


def card(gib: int, weights: int = 15) -> CardMemory:
    return CardMemory(total=gib * GIB, free=(gib - weights) * GIB)


def taken(sizes: RunnerSizes, token: int = TOKEN) -> int:
    """Return bytes of all that a runner of 8B has, beside its weights."""
    rows = -(-sizes.max_samples // 32) * 32
    logits = 128_256 * (rows * (2 + 4 + 1) + 4 * 4 * sizes.max_samples)
    gathered = 16_384 * rows * (4 + 4 + 8)
    parts = PART * (33 * rows + (sizes.num_blocks + 1) / 4)
    kv = (sizes.num_blocks + 1) * BLOCK
    return int(kv + sizes.max_step_tokens * token + logits + gathered + parts + 2 * (32 << 20))


@pytest.mark.parametrize(
    ("memory", "need", "sizes"),
    [
        (card(141), NEED, (14_958, 8192, 256)),
        (card(80), NEED, (7573, 8192, 192)),  # 256 streams would have 1,886 tokens each
        (card(24), NEED, (892, 4096, 64)),
        (card(80), INVARIANT, (7180, 512, 192)),  # 512 pieces of 16.6 kB for each token
        (card(60), XLA, (5017, 2048, 128)),  # in steps of 4,096 scores took 6.4 GB
        (card(18), XLA, (194, 512, 64)),
    ],
)
def test_a_card_is_filled_and_no_more(
    memory: CardMemory, need: ModelNeed, sizes: tuple[int, int, int]
) -> None:
    found = sizes_of(memory, need, WantedSizes())
    assert (found.num_blocks, found.max_step_tokens, found.max_samples) == sizes
    room = memory.free - memory.total // 20
    token = TOKEN + (512 * PART if need.is_invariant else 0)
    if need.is_xla:  # K and V of all layers twice, and 12 bytes of each score of 32 heads
        token += 2 * BLOCK // 64 + 12 * 32 * found.max_step_tokens
    assert taken(found, token) <= room < taken(found, token) + BLOCK + PART


def test_the_page_says_what_cards_get() -> None:
    page = (Path(__file__).parents[3] / "docs" / "runners.md").read_text()
    rows = re.findall(r"^\| (\d+) GiB \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert [int(gib) for gib, *_ in rows] == [24, 80, 141]
    for gib, *cells in rows:
        for need, cell in zip((NEED, INVARIANT), cells, strict=True):
            sizes = sizes_of(card(int(gib)), need, WantedSizes())
            kv = sizes.num_blocks * BLOCK_SIZE
            told = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\b", cell)]
            assert told == [sizes.max_samples, sizes.max_step_tokens, kv]
    sizes = sizes_of(card(60), XLA, WantedSizes())
    kv = sizes.num_blocks * BLOCK_SIZE
    told_of_jax = f"{sizes.max_samples} streams, {sizes.max_step_tokens:,}-token steps and {kv:,}"
    assert f"{told_of_jax} tokens of KV in 60 GiB" in page


def test_what_is_said_stays_and_the_rest_is_fitted_beside_it() -> None:
    usual = sizes_of(card(80), NEED, WantedSizes())
    small = sizes_of(card(80), NEED, WantedSizes(max_step_tokens=512, max_samples=8))
    assert (small.max_step_tokens, small.max_samples) == (512, 8)
    assert small.num_blocks > usual.num_blocks
    wanted = WantedSizes(num_blocks=100, max_samples=300)
    assert sizes_of(card(80), NEED, wanted) == RunnerSizes(
        num_blocks=100, max_step_tokens=8192, max_samples=300
    )


def test_what_does_not_fit_is_refused_with_what_lacks() -> None:
    most = sizes_of(card(80), NEED, WantedSizes(max_samples=64)).num_blocks
    at_most = WantedSizes(num_blocks=most, max_samples=64)
    assert sizes_of(card(80), NEED, at_most).num_blocks == most
    with pytest.raises(ConfigError, match=f"{most + 128} blocks of KV for 64 streams, in steps of "
                       r"8192 tokens, need 1\.00 GiB more"):  # fmt: skip
        sizes_of(card(80), NEED, WantedSizes(num_blocks=most + 128, max_samples=64))
    with pytest.raises(ConfigError, match="8 blocks of KV for 64 streams, in steps of 512 tokens"):
        sizes_of(card(16), NEED, WantedSizes())


class Stub:
    """A device's memory, in place of CUDA's; counts how often it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        monkeypatch.setattr(opening, "device_memory", self._memory)

    def _memory(self, device: object) -> CardMemory:
        self.looks += 1
        return CardMemory(total=GIB, free=GIB)


def test_a_runner_opens_with_what_its_device_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stub = write_model(tmp_path, "llama"), Stub(monkeypatch)
    runner = open_on_torch(path, max_step_tokens=None, max_samples=None, threads=1)
    need = ModelNeed(config=runner.model, block_bytes=runner.kv_format.block_bytes, element_bytes=4)
    sizes = sizes_of(CardMemory(total=GIB, free=GIB), need, WantedSizes())
    assert (runner.num_blocks, runner.max_step_tokens, runner.max_samples) == (
        sizes.num_blocks, sizes.max_step_tokens, sizes.max_samples,
    )  # fmt: skip
    assert runner.num_blocks > HOST_BLOCKS
    assert stub.looks == 1
    runner.close()
    runner = open_on_torch(path, num_blocks=3, threads=1)  # all three are said
    assert (runner.num_blocks, runner.max_step_tokens, runner.max_samples) == (3, 512, 64)
    assert stub.looks == 1
    runner.close()


def test_narrow_kv_has_room_for_nearly_twice_the_blocks() -> None:
    """8 bits for each value, and 32 for each head of each token: 33/64 of bfloat16 at width 128."""
    options = TorchOptions(
        device=torch.device("cpu"), dtype=torch.bfloat16, kernels="triton", threads=1
    )
    wide, narrow = (
        sizes_of(card(80), need_of(LLAMA_8B, each), WantedSizes(max_samples=64)).num_blocks
        for each in (options, replace(options, narrow_kv="int8"))
    )
    kept = BLOCK + PART / 4, BLOCK * 33 / 64 + PART / 4
    assert (narrow + 1) / (wide + 1) == pytest.approx(kept[0] / kept[1], rel=1e-3)


def test_buckets_hold_every_size() -> None:
    assert row_buckets(200) == [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224]
    assert row_buckets(8) == [1, 2, 4, 8]
    assert row_buckets(5) == [1, 2, 4, 8]
    for largest in range(1, 300):
        assert row_buckets(largest)[-1] >= largest


def test_what_is_counted_is_what_kernels_take() -> None:
    pytest.importorskip("triton")
    from skerry_core.kernels.triton import triton_sampling
    from skerry_core.kernels.triton.split_attention import SPLIT_BLOCKS

    assert triton_sampling.GATHERED == GATHERED
    assert PIECE_BLOCKS == SPLIT_BLOCKS
    assert PIECE_BLOCKS * BLOCK_SIZE == 256
