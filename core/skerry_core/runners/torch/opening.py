"""A model's weights, or a rank's part of them, on a Torch device, ready to be run there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from skerry_core.config import ConfigError, KVDtype, KVFormat, ModelConfig
from skerry_core.kernels.torch.decoder import DecoderWeights, assemble
from skerry_core.kernels.torch.quantized import Narrow, NarrowWeights
from skerry_core.models.sharding import Shard
from skerry_core.runner import RunnerSetup, RunnerSizes, WantedSizes
from skerry_core.runners.device_sizes import CardMemory, ModelNeed, sizes_of
from skerry_core.runners.torch.decoder_loading import load_decoder
from skerry_core.runners.torch.open_steps import Kernels, kernels_of
from skerry_core.runners.torch.paged_kv import check_narrow

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """How a model is opened."""

    device: torch.device
    dtype: torch.dtype  # of weights, activations and KV
    kernels: Kernels
    threads: int  # of the host's cores, that a step may use
    deterministic: bool = False
    narrow_kv: Narrow | None = None  # KV in 8 bits (fp8: Ada or later)
    narrow_weights: NarrowWeights | None = None  # what matrices of floats become

    @classmethod
    def of(
        cls, *, device: str | None = None, dtype: torch.dtype | None = None,
        kernels: Kernels | None = None, threads: int, deterministic: bool = False,
        narrow_kv: Narrow | None = None, narrow_weights: NarrowWeights | None = None,
    ) -> TorchOptions:  # fmt: skip
        """Return options, where nothing is said a GPU's if there is one, and a device's own dtype
        and kernels. Raises ConfigError for what the device cannot keep."""
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        own = torch.bfloat16 if target.type == "cuda" else torch.float32
        kernels = kernels or kernels_of(target)
        check_narrow("a matrix", narrow_weights, target, has_triton=kernels == "triton")
        return cls(
            device=target, dtype=dtype or own, kernels=kernels, threads=threads,
            deterministic=deterministic, narrow_kv=narrow_kv, narrow_weights=narrow_weights,
        )  # fmt: skip

    @classmethod
    def from_setup(
        cls, setup: RunnerSetup, *, device: str | None = None, deterministic: bool
    ) -> TorchOptions:
        """Return those that a setup names. Raises ConfigError."""
        floats = None if setup.floats == "keep" else setup.floats
        return cls.of(
            device=device, threads=setup.threads, deterministic=deterministic,
            narrow_kv=cast(Narrow | None, setup.kv),
            narrow_weights=cast(NarrowWeights | None, floats),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    config: ModelConfig
    weights: DecoderWeights
    formats: list[str]  # that the weights had
    options: TorchOptions

    def fitted(self, wanted: WantedSizes) -> RunnerSizes:
        """Return what the device has room for beside the weights. Raises ConfigError."""
        memory = None
        if not wanted.leaves_nothing_open:
            memory = device_memory(self.options.device)
        if memory is None:
            return wanted.on_host()
        return sizes_of(memory, need_of(self.config, self.options), wanted)


def need_of(config: ModelConfig, options: TorchOptions) -> ModelNeed:
    """Return what decides the bytes of a model's steps. Raises ConfigError."""
    block_bytes = kv_format_of(config, options.dtype).block_bytes
    element_bytes = options.dtype.itemsize
    if options.narrow_kv is not None:  # a byte for each value, and a scale for a token's each head
        values = block_bytes // element_bytes
        block_bytes = values + 4 * values // config.head_dim
    return ModelNeed(
        config=config, block_bytes=block_bytes, element_bytes=element_bytes,
        is_invariant=options.deterministic,
    )  # fmt: skip


def device_memory(device: torch.device) -> CardMemory | None:
    """Return what a device has now; None where it computes in the host's memory."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return CardMemory(total=total, free=free)


def load(path: Path, options: TorchOptions, shard: Shard | None = None) -> LoadedModel:
    """Load a GGUF or safetensors model, or what a rank has of it, onto a device. Raises
    WeightsError or ConfigError."""
    config, tensors, formats = load_decoder(
        path, options.device, options.dtype, keeps_quantized=options.kernels == "triton",
        narrow=options.narrow_weights, shard=shard,
    )  # fmt: skip
    weights = assemble(config, tensors, shard)
    return LoadedModel(config=config, weights=weights, formats=formats, options=options)


def kv_format_of(config: ModelConfig, dtype: torch.dtype) -> KVFormat:
    """Return the form of blocks of a model in a dtype. Raises ConfigError for one of no KV."""
    if dtype not in _DTYPES:
        raise ConfigError(f"weights must be float32, float16 or bfloat16, got {dtype}")
    return KVFormat(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, dtype=cast(KVDtype, _DTYPES[dtype]),
    )  # fmt: skip
