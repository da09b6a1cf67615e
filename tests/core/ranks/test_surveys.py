"""What is found of devices where nobody says over how many a model is divided: GPUs that are stood
in for, and what a model takes of them beside what loading it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import pytest
import torch
from tests.core.random_models import mixed, random_weights, write_gguf
from tests.core.ranks.group_suite import group_setup
from tests.core.runners.runner_suite import MODELS

from skerry_core.kernels.torch.quantized import FORMATS, NarrowWeights
from skerry_core.models.weight_file import WeightFile
from skerry_core.ranks import UNDIVIDED, Parallel
from skerry_core.runners.division import divide
from skerry_core.runners.torch.decoder_loading import load_decoder
from skerry_core.runners.torch.opening import TorchOptions
from skerry_core.runners.torch.rank_plan import kept_bytes, survey

GIB = 1 << 30
BLOCK = 2 * 2 * 2 * 64 * 16 * 2  # layers, K and V, heads, tokens, width, bytes: 16 KiB
GPU = TorchOptions(
    device=torch.device("cpu"), dtype=torch.bfloat16, kernels="triton", threads=1
)  # as of a GPU, but for the place
WIDE = replace(MODELS["llama"], hidden_size=256, intermediate_size=512, num_heads=16)


@dataclass(frozen=True)
class GPUs:
    """What `torch.cuda` would say of some."""

    free: tuple[float, ...]  # GiB
    are_peers: bool = True

    def is_available(self) -> bool:
        return len(self.free) > 0

    def device_count(self) -> int:
        return len(self.free)

    def mem_get_info(self, device: int) -> tuple[int, int]:
        return round(self.free[device] * GIB), 80 * GIB

    def can_device_access_peer(self, device: int, peer_device: int) -> bool:
        assert device != peer_device
        return self.are_peers


@pytest.mark.parametrize(
    ("gpus", "parallel", "reason"),
    [
        (GPUs((8, 8)), UNDIVIDED, "fit one device"),
        (GPUs((3, 3)), Parallel(tensor=2), "do not fit one device with 3.0 GiB free; 2 share each "
         "layer"),
        (GPUs((3, 3), are_peers=False), Parallel(pipeline=2), "do not fit one device with 3.0 GiB "
         "free; 2 have some layers each"),
        (GPUs((1, 3, 3)), Parallel(tensor=2), "do not fit one device with 3.0 GiB free; 2 share "
         "each layer"),
        (GPUs((1, 1)), UNDIVIDED, "do not fit one device with 1.0 GiB free, nor any number of the "
         "2 that there are"),
        (GPUs((1.5,) * 3), UNDIVIDED, "do not fit one device with 1.5 GiB free, nor any number of "
         "the 3 that there are"),  # three, for two heads and two layers
    ],
)  # fmt: skip
def test_a_model_is_divided_over_gpus(
    gpus: GPUs, parallel: Parallel, reason: str, tmp_path: Path
) -> None:
    """A small one, with 4 GiB of KV."""
    path = write_gguf(tmp_path / "m.gguf", MODELS["llama"], random_weights(MODELS["llama"]))
    setup = group_setup(
        path, UNDIVIDED, num_blocks=4 * GIB // BLOCK, max_step_tokens=512, max_samples=64
    )
    found = survey(setup, deterministic=False, gpus=gpus, options=GPU)
    assert found is not None
    need, devices = found
    assert need.kv == 4 * GIB
    assert devices.memory == tuple(round(each * GIB) for each in gpus.free)
    division = divide(need, devices, ("tensor", "pipeline"))
    assert division.parallel == parallel
    assert division.reason == f"0.0 GiB of weights and 4.0 GiB of KV {reason}"


def test_one_gpu_divides_nothing(tmp_path: Path) -> None:
    setup = group_setup(
        tmp_path / "none", UNDIVIDED, num_blocks=1, max_step_tokens=512, max_samples=64
    )
    for gpus in (GPUs(()), GPUs((80,))):
        assert survey(setup, deterministic=False, gpus=gpus, options=GPU) is None


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("narrow", [None, "int8", "int4", "bf12"])
def test_weights_take_what_loading_them_takes(
    narrow: NarrowWeights | None, is_tied: bool, tmp_path: Path
) -> None:
    """Floats, and narrowed ones; the embedding is of floats whatever its head is."""
    config = replace(WIDE, tied_embeddings=is_tied)
    path = write_gguf(tmp_path / "m.gguf", config, random_weights(config))
    counted, taken = counted_and_taken(path, narrow)
    assert counted == pytest.approx(taken, rel=0.02 if narrow else 0)


@pytest.mark.parametrize("format_", [each for each in FORMATS if each != "UINT4"])
def test_planes_take_more_than_a_files_blocks(format_: str, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", WIDE, random_weights(WIDE),
        lambda name: format_ if "norm" not in name else "F32",
    )  # fmt: skip
    counted, taken = counted_and_taken(path, None)
    assert counted == taken


def test_mixed_formats_take_what_each_does(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", WIDE, random_weights(WIDE), mixed)
    counted, taken = counted_and_taken(path, None)
    assert counted == taken


def counted_and_taken(path: Path, narrow: NarrowWeights | None) -> tuple[float, int]:
    """Bytes by the survey, and by what lies on the device once a file is loaded."""
    options = replace(GPU, narrow_weights=narrow)
    with WeightFile.open(path) as file:
        counted = kept_bytes(file.config, file.tensors, options)
    _, tensors, _ = load_decoder(
        path, options.device, options.dtype, keeps_quantized=True, narrow=narrow
    )
    taken = 0
    for matrix in tensors.values():
        is_plain = isinstance(matrix, torch.Tensor)
        taken += prod(matrix.shape) * 2 if is_plain else matrix.num_bytes
    return counted, taken
