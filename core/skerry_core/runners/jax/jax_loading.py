"""A model's weights onto a mesh of JAX's devices, each one's part read straight from the file, and
what there is room for beside them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from skerry_core.config import ConfigError, KVFormat, ModelConfig
from skerry_core.kernels.jax.jax_attention import Attention
from skerry_core.kernels.jax.weights import DecoderTree, Host, assemble, join, padded_to
from skerry_core.models.loading import read_decoder
from skerry_core.models.sharding import Shard, whole_model
from skerry_core.models.weight_file import WeightFile
from skerry_core.runner import RunnerSizes, WantedSizes
from skerry_core.runners.device_sizes import ModelNeed, sizes_of
from skerry_core.runners.jax.jax_process import least_of_all, memory_of


def load_decoder(
    path: Path, dtype: str, mesh: Mesh
) -> tuple[ModelConfig, DecoderTree[Array], list[str]]:
    """Return configuration, weights on the mesh, and the formats that the file has them in.

    The host holds one device's part at a time, and of it one tensor in float32. Raises WeightsError
    and ConfigError.
    """
    with WeightFile.open(path) as file:
        config = file.config
    if config.num_kv_heads % mesh.size:
        raise ConfigError(
            f"{config.architecture}'s {config.num_kv_heads} KV heads cannot be divided among "
            f"{mesh.size} devices by the jax runner"
        )
    whole = whole_model(config)
    shards = [replace(whole, tensor_rank=rank, tensor_size=mesh.size) for rank in range(mesh.size)]
    width, formats = 0, set[str]()
    for shard in shards:  # the mapped file's head alone
        with WeightFile.open(path, shard=shard) as file:
            width = max(width, file.config.intermediate_size)
    target = jnp.dtype(dtype)

    def part(shard: Shard) -> DecoderTree[Host]:
        own, tensors, found = read_decoder(
            path, lambda array: array.astype(target), "jax", shard=shard
        )
        formats.update(found)
        return padded_to(assemble(own, tensors), len(shards[0].tokens(config)), width)

    here = [device.process_index == jax.process_index() for device in mesh.devices.flat]
    own = [shard for shard, is_here in zip(shards, here, strict=True) if is_here]
    weights = join(map(part, own), mesh)
    return config, weights, sorted(formats)


def fitted(
    config: ModelConfig, kv_format: KVFormat, mesh: Mesh, attention: Attention, wanted: WantedSizes
) -> RunnerSizes:
    """Return sizes for devices that have the weights already; of several processes the least.

    XLA's own attention gathers whole contexts, which no count of tokens bounds: what is not said is
    a host's then, as it is where a device says nothing of its memory. Raises ConfigError.
    """
    own = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    memory = [] if attention == "xla" or wanted.leaves_nothing_open else memory_of(own)
    if not memory:
        return least_of_all(wanted.on_host())
    part = replace(
        config,
        num_heads=config.num_heads // mesh.size,
        num_kv_heads=config.num_kv_heads // mesh.size,
        intermediate_size=-(-config.intermediate_size // mesh.size),
    )
    need = ModelNeed(
        config=part, block_bytes=kv_format.block_bytes // mesh.size,
        element_bytes=4 if kv_format.dtype == "float32" else 2, is_xla=True,
    )  # fmt: skip
    least = min(memory, key=lambda each: each.free)
    return least_of_all(sizes_of(least, need, wanted))
