"""The Torch runner over Triton's kernels: on the CPU in the interpreter, where a token takes a
tenth of a second. So contexts come from a plain runner, as a hand-over brings them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.subjects.samples import samples_of
from tests.core.host_device import HostDevice, bytes_at
from tests.core.open_runners import open_on_torch
from tests.core.paged_kv import DEVICE
from tests.core.random_models import (
    quantize_matrices,
    random_weights,
    write_gguf,
    write_safetensors,
)
from tests.core.reference_model import kl_divergence
from tests.core.runners.hand_batches import Piece, batch_of
from tests.core.runners.runner_suite import (
    MODELS,
    answers_of,
    check_greedy,
    engine_over,
    random_tokens,
    reference,
)
from tests.core.triton.triton_runners import (
    ATOL,
    LENGTH,
    NUM_BLOCKS,
    hand_over,
    logits_of,
    open_runner,
)
from tests.core.triton.triton_values import check_same

pytest.importorskip("triton")

from bench.subjects.requests import Request, SamplingParams

from skerry_core.config import ConfigError
from skerry_core.device_pages import DevicePages
from skerry_core.kernels.torch.lossless import BF12Planes
from skerry_core.kernels.torch.quantized import FORMATS, Narrow, NarrowWeights, QuantizedMatrix
from skerry_core.kernels.torch.torch_staging import Streamer
from skerry_core.page_checksums import KVChecksumError, page_checksums
from skerry_core.runners.torch import triton_steps

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

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
    np.testing.assert_allclose(told, expected[places], rtol=0, atol=ATOL)


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
    runner.admit_pages([8, 7], taken[1:], told[1:].tolist())
    np.testing.assert_array_equal(runner.export_blocks([8, 7])[0], data[1:])
    bytes_at(taken[2].address, len(taken[2]))[3000] ^= 16
    with pytest.raises(KVChecksumError, match="1 of 2 KV blocks"):
        runner.admit_pages([7, 8], taken[1:], told[1:].tolist())
    np.testing.assert_array_equal(runner.export_blocks([8, 7])[0], data[1:])
    with pytest.raises(ValueError, match="1 blocks in 2 pages"):
        runner.export_pages([5], taken[1:])
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
    np.testing.assert_allclose(together, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("format_", ["Q4_0", pytest.param("Q8_0", marks=slow)])
def test_quantised_weights_stay_so(tmp_path: Path, format_: str) -> None:
    """Q and K of a Llama in GGUF are put in order before they are taken apart."""
    pytest.importorskip("gguf")
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
        check_greedy(reference(models["qwen2"]), request, answers[request.id], ATOL)


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


def test_all_that_is_warmed_up_lies_in_the_scratch_block(models: dict[str, Path]) -> None:
    steps = open_runner(models["qwen2"])._steps
    for count in triton_steps._PREFILLS:
        step = steps._prefill(count)  # type: ignore[attr-defined]
        assert len(step.slots) == count
        assert set((step.slots // 64).tolist()) == set(step.tables.ravel().tolist()) == {NUM_BLOCKS}


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
    np.testing.assert_allclose(told, expected, rtol=0, atol=ATOL)


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
    runner = open_runner(path, num_blocks=2, narrow_kv=kv, narrow_weights=weights)
    decoder = runner._steps._decoder  # type: ignore[attr-defined]
    assert isinstance(decoder.weights.layers[0].qkv, QuantizedMatrix)
    assert isinstance(decoder.weights.head, QuantizedMatrix)  # tied: the embedding is of floats
    hand_over(path, runner, tokens[:66], [1, 0])
    told = logits_of(runner, Piece(tokens[66:], 66, [1, 0]))
    expected = reference(path).logits(tokens)[66:]
    assert kl_divergence(expected, told).max() < worst_kl


def test_weights_in_12_bits_are_those_of_the_file(tmp_path: Path) -> None:
    config, tokens = MODELS["qwen2"], random_tokens(68)
    exact = {
        name: torch.from_numpy(values).bfloat16().float().numpy()
        for name, values in random_weights(config).items()
    }
    path = write_safetensors(tmp_path, config, exact)
    runner = open_runner(path, num_blocks=2, narrow_weights="bf12")
    decoder = runner._steps._decoder  # type: ignore[attr-defined]
    assert isinstance(decoder.weights.layers[0].qkv, BF12Planes)
    assert isinstance(decoder.weights.head, BF12Planes)
    hand_over(path, runner, tokens[:66], [1, 0])
    told = logits_of(runner, Piece(tokens[66:], 66, [1, 0]))
    np.testing.assert_allclose(told, reference(path).logits(tokens)[66:], rtol=0, atol=ATOL)


def test_eight_bits_need_our_kernels(models: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="KV in fp8 needs Triton's kernels"):
        open_on_torch(models["llama"], num_blocks=1, device="cpu", narrow_kv="fp8")
    with pytest.raises(ConfigError, match="a matrix in int4 needs Triton's kernels"):
        open_on_torch(models["llama"], num_blocks=1, device="cpu", narrow_weights="int4")


def test_kernels_are_part_of_the_build(models: dict[str, Path]) -> None:
    builds = {
        open_on_torch(
            models["llama"],
            num_blocks=1,
            threads=1,
            device="cpu",
            kernels=kernels,
            deterministic=deterministic,
        ).numeric_build
        for kernels in ("torch", "triton")
        for deterministic in (False, True)
    }
    assert len(builds) == 4


def test_bytes_arrive_whole_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry_core.kernels.torch.torch_staging._PIECE", 1000)
    rng = np.random.default_rng(0)
    with closing(Streamer(DEVICE)) as stream:
        for length in (0, 1, 999, 1000, 12_345):
            data = rng.integers(0, 256, length, np.uint8)
            assert torch.equal(stream.put(data).cpu(), torch.from_numpy(data))
