"""Which rank of Torch has what of a model: the same for all of them, since they see one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import cast

import torch

from skerry_core.blocks import blocks_for
from skerry_core.config import ConfigError, KVFormat, ModelConfig
from skerry_core.kernels.torch.quantized import FORMATS, Narrow, NarrowWeights
from skerry_core.models.sharding import Shard
from skerry_core.models.stages import stages_of
from skerry_core.models.tensor_names import EMBEDDING, HEAD
from skerry_core.models.weight_file import WeightFile
from skerry_core.ranks import Parallel
from skerry_core.runner import RunnerSetup
from skerry_core.runners.division import FAST_LINK, DivisionNeed, RankDevices
from skerry_core.runners.stage_balance import cut, kv_bytes, share_read
from skerry_core.runners.torch.opening import TorchOptions, kv_format_of
from skerry_core.weights.tensors import FileTensor, row_bytes

_NARROWED = {"int8": 0.53, "fp8": 0.5, "int4": 0.28, "bf12": 0.754}  # of bfloat16's bytes


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
    floats = None if setup.floats == "keep" else setup.floats
    return TorchOptions.of(
        device=device, threads=setup.threads, deterministic=deterministic,
        narrow_kv=cast(Narrow | None, setup.kv),
        narrow_weights=cast(NarrowWeights | None, floats),
    )  # fmt: skip


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
        return RankPlan(
            model=file.config, kv_format=kv_format, formats=sorted(formats), shards=shards
        )


def survey(setup: RunnerSetup, *, deterministic: bool) -> tuple[DivisionNeed, RankDevices] | None:
    """Return what a model needs and what GPUs there are; None where there are not several. Reads no
    weights. Raises WeightsError or ConfigError."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        return None
    options = rank_options(setup, deterministic=deterministic)
    with WeightFile.open(setup.weights) as file:
        config = file.config
        weights = sum(_kept_bytes(tensor, options) for tensor in file.tensors.values())
    blocks = setup.sizes.num_blocks or blocks_for(min(config.max_context, setup.max_context))
    need = DivisionNeed(
        weights=round(weights * _NARROWED.get(options.narrow_weights or "", 1.0)),
        kv=blocks * kv_format_of(config, options.dtype).block_bytes,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
    )
    memory = tuple(torch.cuda.mem_get_info(index)[0] for index in range(count))
    are_peers = all(torch.cuda.can_device_access_peer(0, index) for index in range(1, count))
    return need, RankDevices(memory=memory, link=FAST_LINK if are_peers else 0.0)


def step_bytes(
    config: ModelConfig, tensors: Mapping[str, FileTensor], options: TorchOptions
) -> tuple[list[float], float]:
    """Return the bytes that a step of few rows reads of each layer, its KV included, and of the
    head."""
    layers = [kv_bytes(config, index) for index in range(config.num_layers)]
    for name, tensor in tensors.items():
        if name.startswith("blk."):
            read = _kept_bytes(tensor, options) * share_read(config, name)
            layers[int(name.split(".", 2)[1])] += read
    return layers, _kept_bytes(tensors[EMBEDDING if config.tied_embeddings else HEAD], options)


def _kept_bytes(tensor: FileTensor, options: TorchOptions) -> float:
    """Return the bytes of a tensor on a device."""
    if options.kernels == "triton" and tensor.format in FORMATS and len(tensor.shape) == 2:
        return tensor.shape[0] * row_bytes(tensor.format, tensor.shape[1])
    return prod(tensor.shape) * options.dtype.itemsize
