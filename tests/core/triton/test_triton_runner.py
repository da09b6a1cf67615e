"""The Torch runner over Triton's kernels: on the CPU in the interpreter, where a token takes a
tenth of a second. So contexts come from a plain runner, as a hand-over brings them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.subjects.samples import samples_of
from tests.core.host_device import HostDevice
from tests.core.paged_kv import DEVICE
from tests.core.random_models import quantize_matrices, random_weights, write_gguf
from tests.core.reference_model import kl_divergence
from tests.core.runners.runner_suite import (
    MODELS,
    Piece,
    answers_of,
    batch_of,
    check_greedy,
    engine_over,
    random_tokens,
    reference,
    teacher_forced,
    write_model,
)
from tests.core.triton.triton_values import check_same

pytest.importorskip("triton")

from bench.subjects.requests import Request, SamplingParams

from skerry_core.batch import Float32
from skerry_core.config import ConfigError
from skerry_core.device_pages import DevicePages
from skerry_core.kernels.torch.lossless import BF12Planes
from skerry_core.kernels.torch.quantized import FORMATS, Narrow, NarrowWeights, QuantizedMatrix
from skerry_core.kernels.torch.torch_staging import Streamer
from skerry_core.page_checksums import KVChecksumError, page_checksums
from skerry_core.runners.torch.torch_runner import TorchRunner
from skerry_core.runners.torch.triton_arrangement import arrange, most_pieces, pad

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

NUM_BLOCKS, LENGTH = 12, 140


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder, name) for name in MODELS}


def open_runner(path: Path, *, deterministic: bool = False) -> TorchRunner:
    return TorchRunner.open(
        path, num_blocks=NUM_BLOCKS, max_samples=8, threads=1, kernels="triton",
        device=str(DEVICE), deterministic=deterministic,
    )  # fmt: skip


def hand_over(path: Path, runner: TorchRunner, tokens: list[int], table: list[int]) -> None:
    """Put the KV of all tokens into a runner's blocks; a plain runner computes it."""
    plain = TorchRunner.open(path, num_blocks=3, max_samples=512, threads=1)
    teacher_forced(plain, tokens, (len(tokens),), [0, 1, 2])
    blocks = range(-(-len(tokens) // 64))
    data, _ = plain.export_blocks(list(blocks))
    runner.admit_blocks([table[block] for block in blocks], data)


def logits_of(runner: TorchRunner, *pieces: Piece) -> Float32:
    runner.execute(batch_of(*pieces))
    return runner.last_logits().copy()


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(name, marks=slow) for name in MODELS if name != "qwen3")]
)
def test_logits_are_the_references_over_a_prefix_that_came_from_elsewhere(
    models: dict[str, Path], name: str
) -> None:
    """A chunk beside a decode row, then decoding alone, in a padded batch of three."""
    runner, tokens = open_runner(models[name]), random_tokens(LENGTH)
    expected = reference(models[name]).logits(tokens)
    hand_over(models[name], runner, tokens[:130], [5, 0, 3])
    hand_over(models[name], runner, tokens[:70], [7, 8])
    runner.admit_blocks([9, 10], *runner.export_blocks([7, 8]))
    chunk = Piece(tokens[130:133], 130, [5, 0, 3])
    told = logits_of(runner, Piece(tokens[70:71], 70, [7, 8]), chunk)
    rows = [Piece([tokens[p]], p, t) for p, t in ((133, [5, 0, 3]), (71, [7, 8]), (70, [9, 10]))]
    told = np.concatenate([told, logits_of(runner, *rows)])
    places = [70, *range(130, 134), 71, 70]
    np.testing.assert_allclose(told, expected[places], rtol=0, atol=3e-5)


def test_blocks_that_were_spoilt_are_not_written(models: dict[str, Path]) -> None:
    runner = open_runner(models["qwen3"])
    hand_over(models["qwen3"], runner, random_tokens(130), [5, 0, 3])
    data, checksums = runner.export_blocks([5, 0, 3])
    assert checksums is not None
    np.testing.assert_array_equal(checksums, page_checksums(data))
    runner.admit_blocks([8, 7], data[:2], checksums[:2])
    spoilt = data[1:].copy()
    spoilt.reshape(2, -1).view(np.uint32)[1, 1000] ^= 1 << 31
    with pytest.raises(KVChecksumError, match="1 of 2 KV blocks"):
        runner.admit_blocks([8, 7], spoilt, checksums[1:])
    np.testing.assert_array_equal(runner.export_blocks([8, 7])[0], data[:2])


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the pages are the host's")
def test_blocks_cross_in_pages(models: dict[str, Path]) -> None:
    runner = open_runner(models["qwen3"])
    hand_over(models["qwen3"], runner, random_tokens(130), [5, 0, 3])
    data, checksums = runner.export_blocks([5, 0, 3])
    pages = DevicePages(HostDevice(), runner.kv_format.block_bytes, 3)
    taken = pages.take(3)
    told = runner.export_pages([5, 0, 3], taken)
    np.testing.assert_array_equal(told, checksums)
    assert [page.to_host() for page in taken] == [block.tobytes() for block in data]
    runner.admit_page(8, taken[1], int(told[1]))
    taken[2].view[3000] ^= 16
    with pytest.raises(KVChecksumError, match="1 of 1 KV blocks"):
        runner.admit_page(8, taken[2], int(told[2]))
    np.testing.assert_array_equal(runner.export_block(8), data[1])
    with pytest.raises(OSError, match="KV is not moved by kernels of a CUDA device"):
        runner.open_pages(1)


def test_deterministic_bits_are_equal_alone_and_in_any_batch(models: dict[str, Path]) -> None:
    path = models["mistral"]
    runner, tokens = open_runner(path, deterministic=True), random_tokens(LENGTH)
    assert runner.batch_invariant
    table = [5, 0, 3]
    hand_over(path, runner, tokens[:130], table)
    alone = [logits_of(runner, Piece([tokens[p]], p, table)) for p in (130, 131)]
    together = logits_of(runner, Piece([1], 0, [8]), Piece(tokens[130:132], 130, table))[1:]
    check_same(torch.from_numpy(together), torch.from_numpy(np.concatenate(alone)))
    expected = reference(path).logits(tokens)[130:132]
    np.testing.assert_allclose(together, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("format_", ["Q4_0", pytest.param("Q8_0", marks=slow)])
def test_quantised_weights_stay_so(tmp_path: Path, format_: str) -> None:
    """Q and K of a Llama in GGUF are put in order before they are taken apart."""
    config = MODELS["llama"]
    path = write_gguf(
        tmp_path / "small.gguf", config, random_weights(config), quantize_matrices(format_)
    )
    assert format_ in FORMATS
    runner, tokens = open_runner(path), random_tokens(2)
    weights = runner._steps._decoder.weights  # type: ignore[attr-defined]
    assert isinstance(weights.layers[0].gate_up, QuantizedMatrix)
    assert isinstance(weights.head, QuantizedMatrix)  # tied: the embedding itself is of floats
    expected = reference(path).logits(tokens)
    np.testing.assert_allclose(logits_of(runner, Piece(tokens, 0, [2])), expected, atol=2e-3)


def test_an_engine_gives_the_references_tokens(models: dict[str, Path]) -> None:
    runner = open_runner(models["qwen2"])
    requests = [
        Request(
            id=str(i), prompt_ids=tuple(random_tokens(4 + i, seed=i)),
            sampling=SamplingParams(max_tokens=2, logprobs=1),
        )
        for i in range(2)
    ]  # fmt: skip
    answers = answers_of(engine_over(runner), requests)
    for request in requests:
        check_greedy(reference(models["qwen2"]), request, answers[request.id], 3e-5)


def test_a_step_takes_what_the_one_before_it_makes(models: dict[str, Path]) -> None:
    """Two rows that decode, padded, then one of them beside a chunk."""
    runner = open_runner(models["qwen2"])
    first = batch_of(Piece([3], 0, [4]), Piece([9], 0, [7]))
    second = batch_of(Piece([0], 1, [7]), Piece([5, 8], 1, [4]))
    second.feeds = np.array([[0, 1]], np.int32)
    runner.launch(first)
    runner.launch(second)
    made = [runner.collect().token_ids for _ in range(2)]
    told = runner.last_logits()
    np.testing.assert_array_equal(runner.execute(first).token_ids, made[0])
    second.token_ids[0], second.feeds = made[0][1], None
    np.testing.assert_array_equal(runner.execute(second).token_ids, made[1])
    np.testing.assert_array_equal(runner.last_logits(), told)


def test_a_step_of_more_pieces_than_a_graph_lists_runs_without(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = open_runner(models["qwen2"])
    rows = Piece([3], 0, [4]), Piece([9], 0, [7]), Piece([5], 0, [2])
    padded = logits_of(runner, *rows)
    monkeypatch.setattr("skerry_core.runners.torch.triton_steps.most_pieces", lambda *_: 3)
    monkeypatch.setattr("skerry_core.runners.torch.triton_steps.pad", None)
    np.testing.assert_allclose(logits_of(runner, *rows), padded, rtol=0, atol=1e-5)


def test_warm_up_leaves_blocks_as_they_were(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_core.runners.torch.triton_steps._PREFILLS", (2,))
    runner = open_runner(models["qwen2"])
    hand_over(models["qwen2"], runner, random_tokens(64), [4])
    before, shares = runner.export_blocks(range(NUM_BLOCKS))[0], list[float]()
    runner.warm_up(lambda what, share: shares.append(share))
    np.testing.assert_array_equal(runner.export_blocks(range(NUM_BLOCKS))[0], before)
    assert shares[-1] == 1.0


def test_a_chunk_that_samples_nothing_still_writes_its_kv(models: dict[str, Path]) -> None:
    runner, tokens = open_runner(models["qwen2"]), random_tokens(3)
    batch = batch_of(Piece(tokens[:2], 0, [4]))
    batch.sample_tokens, batch.sampling = batch.sample_tokens[:0], samples_of(0)
    assert len(runner.execute(batch).token_ids) == 0
    expected = reference(models["qwen2"]).logits(tokens)[2:]
    told = logits_of(runner, Piece(tokens[2:], 2, [4]))
    np.testing.assert_allclose(told, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("kv", "weights", "worst_kl"),
    [
        ("int8", "int8", 1e-3),
        (None, "int4", 3e-2),
        pytest.param("fp8", "fp8", 1e-2, marks=slow),
    ],
)
def test_narrow_weights_and_kv_stay_close(
    models: dict[str, Path], kv: Narrow | None, weights: NarrowWeights, worst_kl: float
) -> None:
    path, tokens = models["qwen2"], random_tokens(68)
    runner = TorchRunner.open(
        path, num_blocks=2, max_samples=8, threads=1, kernels="triton", device=str(DEVICE),
        narrow_kv=kv, narrow_weights=weights,
    )  # fmt: skip
    decoder = runner._steps._decoder  # type: ignore[attr-defined]
    assert isinstance(decoder.weights.layers[0].qkv, QuantizedMatrix)
    assert isinstance(decoder.weights.head, QuantizedMatrix)  # tied: the embedding is of floats
    hand_over(path, runner, tokens[:66], [1, 0])
    told = logits_of(runner, Piece(tokens[66:], 66, [1, 0]))
    expected = reference(path).logits(tokens)[66:]
    assert kl_divergence(expected, told).max() < worst_kl


def test_weights_in_12_bits_are_those_of_the_file(tmp_path: Path) -> None:
    config, tokens = MODELS["qwen2"], random_tokens(68)
    path = write_gguf(
        tmp_path / "bf16.gguf", config, random_weights(config), quantize_matrices("BF16")
    )
    runner = TorchRunner.open(
        path, num_blocks=2, max_samples=8, threads=1, kernels="triton", device=str(DEVICE),
        narrow_weights="bf12",
    )  # fmt: skip
    decoder = runner._steps._decoder  # type: ignore[attr-defined]
    assert isinstance(decoder.weights.layers[0].qkv, BF12Planes)
    assert isinstance(decoder.weights.head, BF12Planes)
    hand_over(path, runner, tokens[:66], [1, 0])
    told = logits_of(runner, Piece(tokens[66:], 66, [1, 0]))
    np.testing.assert_allclose(told, reference(path).logits(tokens)[66:], rtol=0, atol=3e-5)


def test_eight_bits_need_our_kernels(models: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="KV in fp8 needs Triton's kernels"):
        TorchRunner.open(models["llama"], num_blocks=1, narrow_kv="fp8")
    with pytest.raises(ConfigError, match="a matrix in int4 needs Triton's kernels"):
        TorchRunner.open(models["llama"], num_blocks=1, narrow_weights="int4")


def test_kernels_are_part_of_the_build(models: dict[str, Path]) -> None:
    builds = {
        TorchRunner.open(
            models["llama"], num_blocks=1, threads=1, kernels=kernels, deterministic=deterministic
        ).numeric_build
        for kernels in ("torch", "triton")
        for deterministic in (False, True)
    }
    assert len(builds) == 4


# --- steps on the host ---------------------------------------------------------------------------


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
    assert [column.tolist() for column in step.whole_tiles] == [[1, 1], [22, 1], [19, 21]]
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


def test_bytes_arrive_whole_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry_core.kernels.torch.torch_staging._PIECE", 1000)
    rng = np.random.default_rng(0)
    with closing(Streamer(DEVICE)) as stream:
        for length in (0, 1, 999, 1000, 12_345):
            data = rng.integers(0, 256, length, np.uint8)
            assert torch.equal(stream.put(data).cpu(), torch.from_numpy(data))
