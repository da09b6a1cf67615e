"""What ranks read and make of quantised safetensors: their rows and columns alone."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tests.core.random_models import random_weights, write_safetensors
from tests.core.ranks.thread_ranks import open_ranks
from tests.core.reference_model import kl_divergence
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import open_torch, random_tokens
from tests.core.weights.quantized_files import CONFIG, KINDS_OF_FILES, write

from skerry_core.config import ConfigError
from skerry_core.models import weight_file
from skerry_core.models.compression import compress
from skerry_core.models.sharding import Shard
from skerry_core.models.stages import ModelStage
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import Bytes, FileTensor, MadeMatrix, row_bytes

LARGE = replace(CONFIG, hidden_size=512, intermediate_size=1024, head_dim=64)
KINDS = [*KINDS_OF_FILES, "BF12"]
RANKS = [
    Shard(stage=ModelStage(0, 2, 2), tensor_rank=rank, tensor_size=2) for rank in range(2)
]  # fmt: skip


def write_kind(folder: Path, kind: str) -> Path:
    """A model of a kind, its layers' matrices quantised."""
    folder.mkdir()
    if kind != "BF12":
        write(folder, kind, LARGE)
        return folder
    weights = random_weights(LARGE)
    for weight in weights.values():
        if weight.ndim == 2:
            weight[5, 3:300:70] = 1e-30  # beyond a row's window: escaped
    path = write_safetensors(folder, LARGE, weights)
    save_file({name: each.bfloat16() for name, each in load_file(path).items()}, path)
    compress(folder, folder / "smaller", lambda share: None)
    return folder / "smaller"


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kind(tmp_path_factory.mktemp("model") / "whole", request.param)


class Recorder:
    """Reads a file's tensors by rows and columns, and counts the bytes of each."""

    def __init__(self) -> None:
        self.read = Counter[str]()
        self.sizes = dict[str, int]()
        self.lengths = dict[str, int]()  # rows

    def recorded(self, *arguments: Bytes | str, **options: bool) -> dict[str, FileTensor]:
        tensors = read_safetensors(*arguments, **options)  # type: ignore[arg-type]
        return {name: self._recorded(name, tensor) for name, tensor in tensors.items()}

    def _recorded(self, name: str, tensor: FileTensor) -> FileTensor:
        self.sizes[name], self.lengths[name] = tensor.data.nbytes, tensor.shape[0]
        rows = 1 if len(tensor.shape) == 1 else tensor.shape[0]
        by_row = tensor.data.reshape(rows, -1)

        def read(some: range, columns: range) -> Bytes:
            first, end = (row_bytes(tensor.format, each) for each in (columns.start, columns.stop))
            part = by_row[some.start : some.stop, first:end].copy()
            self.read[name] += part.nbytes
            return part

        every = MadeMatrix(read, range(rows), range(tensor.shape[-1]))
        return FileTensor(tensor.format, tensor.shape, every)


@contextmanager
def recording() -> Generator[Recorder]:
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_file, "read_safetensors", recorder.recorded)
        yield recorder


def test_ranks_read_a_file_once_between_them(folder: Path) -> None:
    """But for what both have: norms, one number for a matrix, groups at both sides of a cut."""
    recorders = list[Recorder]()
    for shard in RANKS:
        with recording() as recorder, WeightFile.open(folder, shard=shard) as part:
            for tensor in part.tensors.values():
                assert tensor.data.nbytes
        recorders.append(recorder)
    first, second = (each.read for each in recorders)
    sizes, lengths = recorders[0].sizes, recorders[0].lengths
    for name, size in sizes.items():
        both, kind = first[name] + second[name], name.rpartition(".")[2]
        if kind in ("input_scale", "weight_shape"):
            assert both == 0
        elif "norm" in name or size == 4 or kind in ("g_idx", "bias", "bf12_escapes"):
            assert both == 2 * size, name
        elif kind == "weight_scale_inv":  # of blocks of 40 rows, two of which have both halves
            assert size <= both <= 1.5 * size, name
        elif size == 4 * lengths[name] or kind in ("bf12_firsts", "bf12_exponents"):
            assert both in (size, 2 * size), name  # of rows, which both have where columns are cut
        else:
            assert both == size, name
            assert 0.45 * size <= first[name] <= 0.55 * size, name
    assert sum(first.values()) < 0.53 * sum(sizes.values())


def test_a_rank_holds_half_of_what_the_whole_does(folder: Path) -> None:
    """While its largest matrix is made, as NumPy reports what it allocates."""

    def peak(shard: Shard | None) -> int:
        most = 0
        with WeightFile.open(folder, shard=shard) as file:
            for name, tensor in file.tensors.items():
                if not name.startswith("blk."):
                    continue
                tracemalloc.start()
                assert tensor.data.nbytes
                most = max(most, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
        return most

    whole = peak(None)
    for shard in RANKS:
        assert 0.4 * whole < peak(shard) < 0.6 * whole


def test_a_part_is_what_the_whole_has_there(folder: Path) -> None:
    """Wherever rows are cut, within words of eight too, and columns between blocks."""
    with WeightFile.open(folder) as file:
        tensors = file.tensors
    for name in ("blk.0.attn_k.weight", "blk.1.ffn_down.weight"):
        whole = tensors[name]
        rows, columns = whole.shape
        for some in (range(rows), range(20, 41), range(rows - 3, rows), range(1, rows, 3)):
            for part in (range(columns), range(32, 96), range(columns - 32, columns)):
                own = whole.cut(-2, some).cut(-1, part)
                first, end = (row_bytes(whole.format, each) for each in (part.start, part.stop))
                expected = whole.by_row[some.start : some.stop : some.step, first:end]
                assert own.shape == (len(some), len(part))
                np.testing.assert_array_equal(own.by_row, expected)
                again = own.cut(-1, range(0, 32)).cut(-2, range(len(some) - 1, len(some)))
                width = row_bytes(whole.format, 32)
                np.testing.assert_array_equal(again.by_row, expected[-1:, :width])


@pytest.mark.slow
def test_two_ranks_give_the_logits_of_the_whole(folder: Path, tmp_path: Path) -> None:
    tokens, table = [t % LARGE.vocab_size for t in random_tokens(100)], [2, 0]
    whole = open_torch(folder, num_blocks=3, max_step_tokens=100, max_samples=100)
    expected = teacher_forced(whole, tokens, (70, 30), table)
    whole.close()
    ranks = open_ranks(folder, tmp_path / "store", tensor=2, stages=[range(2)], num_blocks=3)
    logits = teacher_forced(ranks, tokens, (70, 30), table)
    ranks.close()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert kl_divergence(expected, logits).max() < 1e-8


@pytest.mark.parametrize("kind", ["AWQ", "GPTQ", "compressed-tensors", "FP8 in blocks"])
def test_columns_that_are_no_whole_blocks_are_refused(kind: str, tmp_path: Path) -> None:
    """A rank's heads of 48 dimensions are no blocks of 32 of the matrix behind them."""
    narrow = replace(LARGE, num_heads=2, head_dim=48, hidden_size=96, num_kv_heads=2)
    write(tmp_path, kind, narrow)
    with pytest.raises(
        ConfigError,
        match=r"tensor 'blk\.0\.attn_output\.weight' cannot be divided: 48 columns are not whole "
        r"\w+ blocks of 32",
    ):
        WeightFile.open(tmp_path, shard=RANKS[1])
