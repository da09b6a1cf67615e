"""Which rank of Torch has what of a model: the same for all of them, since they see one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Protocol

import torch

from skerry_core.blocks import blocks_for
from skerry_core.config import ConfigError, KVFormat, ModelConfig
from skerry_core.kernels.torch.quantized import FORMATS, unpack
from skerry_core.models.sharding import Shard, sharded
from skerry_core.models.stages import stages_of
from skerry_core.models.tensor_names import EMBEDDING, HEAD
from skerry_core.models.weight_file import WeightFile
from skerry_core.ranks import Parallel
from skerry_core.runner import RunnerSetup
from skerry_core.runners.division import FAST_LINK, DivisionNeed, RankDevices
from skerry_core.runners.stage_balance import cut, kv_bytes, share_read
from skerry_core.runners.torch.opening import TorchOptions, kv_format_of
from skerry_core.weights.tensors import FileTensor, row_bytes

_NARROWED = {"int8": 1.0625, "fp8": 1.0, "int4": 0.625, "bf12": 1.508}  # bytes of a weight
_ROW = 256  # weights: whole blocks of each format
_FLOATS = ("F32", "F16", "BF16")


class DeviceProperties(Protocol):
    """What a survey looks at of GPUs: `torch.cuda`."""

    def is_available(self) -> bool: ...
    def device_count(self) -> int: ...
    def mem_get_info(self, device: int, /) -> tuple[int, int]:
        """Return free and all bytes."""
        ...

    def can_device_access_peer(self, device: int, peer_device: int, /) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    model: ModelConfig
    kv_format: KVFormat
    formats: list[str]  # of all weights
    shards: Sequence[Shard]  # by rank: those of a stage are neighbours


def rank_options(setup: RunnerSetup, *, deterministic: bool) -> TorchOptions:
    """Return how a rank's part is opened: on a GPU of its own where there are some.

    Raises ConfigError where there are fewer than ranks.
    """
    device = "cpu"
    if torch.cuda.is_available():
        count, needed = torch.cuda.device_count(), setup.parallel.num_ranks
        if count < needed:
            raise ConfigError(f"{needed} ranks need a GPU each, there are {count}")
        device = f"cuda:{setup.rank}"
        torch.cuda.set_device(setup.rank)
    return TorchOptions.from_setup(setup, device=device, deterministic=deterministic)


def plan_ranks(weights: Path, parallel: Parallel, options: TorchOptions) -> RankPlan:
    """Return who has what; no weight is read yet. Raises WeightsError, or ConfigError for what
    Torch cannot run."""
    with WeightFile.open(weights) as file:
        file.config.check_features(options.kernels)
        kv_format = kv_format_of(file.config, options.dtype)
        layers, head = step_bytes(file.config, file.tensors, options)
        formats = {each.format for each in file.tensors.values()}
        if options.narrow_weights is not None:
            formats.add(options.narrow_weights)
        equal = [1.0] * parallel.pipeline  # devices: the slowest stage is as fast as can be
        cuts = cut(layers, head, equal, [0.0] * parallel.pipeline)
        shards = [
            Shard(stage=stage, tensor_rank=part, tensor_size=parallel.tensor)
            for stage in stages_of(cuts, len(layers))
            for part in range(parallel.tensor)
        ]
        for shard in shards:  # what cannot be cut is refused before ranks wait for one another
            sharded(file.config, file.tensors, shard)
        return RankPlan(
            model=file.config, kv_format=kv_format, formats=sorted(formats), shards=shards
        )


def survey(
    setup: RunnerSetup, *, deterministic: bool = False, gpus: DeviceProperties = torch.cuda,
    options: TorchOptions | None = None,
) -> tuple[DivisionNeed, RankDevices] | None:  # fmt: skip
    """Return what a model needs and what GPUs there are; None where there are not several. Reads no
    weights. `options` are those of a rank unless named. Raises WeightsError or ConfigError."""
    count = gpus.device_count() if gpus.is_available() else 0
    if count < 2:
        return None
    options = options or rank_options(setup, deterministic=deterministic)
    with WeightFile.open(setup.weights) as file:
        config = file.config
        weights = kept_bytes(config, file.tensors, options)
    blocks = setup.sizes.num_blocks or blocks_for(min(config.max_context, setup.max_context))
    kv = blocks * kv_format_of(config, options.dtype).block_bytes
    need = DivisionNeed.of(config, weights=round(weights), kv=kv)
    memory = tuple(gpus.mem_get_info(index)[0] for index in range(count))
    are_peers = all(gpus.can_device_access_peer(0, index) for index in range(1, count))
    return need, RankDevices(memory=memory, link=FAST_LINK if are_peers else 0.0)


def kept_bytes(
    config: ModelConfig, tensors: Mapping[str, FileTensor], options: TorchOptions
) -> float:
    """Return the bytes that a model's weights take on a device: rows of the embedding are looked
    up, so that it is floats, and a tied head beside it where that has fewer bits."""
    embedding = tensors[EMBEDDING]
    floats = prod(embedding.shape) * options.dtype.itemsize
    total = floats + sum(_kept(t, options) for n, t in tensors.items() if n != EMBEDDING)
    head = _kept(embedding, options)
    return total + head if config.tied_embeddings and head < floats else total


def step_bytes(
    config: ModelConfig, tensors: Mapping[str, FileTensor], options: TorchOptions
) -> tuple[list[float], float]:
    """Return the bytes that a step of few rows reads of each layer, its KV included, and of the
    head."""
    layers = [kv_bytes(config, index) for index in range(config.num_layers)]
    for name, tensor in tensors.items():
        if name.startswith("blk."):
            read = _kept(tensor, options) * share_read(config, name)
            layers[int(name.split(".", 2)[1])] += read
    return layers, _kept(tensors[EMBEDDING if config.tied_embeddings else HEAD], options)


def _kept(tensor: FileTensor, options: TorchOptions) -> float:
    """Return the bytes of a tensor on a device, of a matrix as it is multiplied."""
    if options.kernels == "triton" and len(tensor.shape) == 2:
        if tensor.format in FORMATS:
            return prod(tensor.shape) * _unpacked(tensor.format)
        if options.narrow_weights and tensor.format in _FLOATS and tensor.shape[1] % 32 == 0:
            return prod(tensor.shape) * _NARROWED[options.narrow_weights]
    return prod(tensor.shape) * options.dtype.itemsize


@cache
def _unpacked(format_: str) -> float:
    """Return bytes of a weight of a quantised format, taken apart into planes."""
    row = torch.zeros(1, row_bytes(format_, _ROW), dtype=torch.uint8)
    return unpack(row, format_, _ROW).num_bytes / _ROW
