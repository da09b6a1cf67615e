"""A model divided among ranks: by layers (a pipeline's stages), and each layer by heads, widths of
feed-forward networks and vocabulary (tensor parallelism; Shoeybi et al., 2019).

A rank's part is a smaller model: its configuration says what lies on the rank, so that loading, KV
and steps follow from it. Two sums over the ranks of a stage make a layer whole: of what attention's
output matrix gives, and of what the feed-forward network gives. A bias that would be added by each
of them is zeros on all but one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from skerry_core.config import ConfigError, ModelConfig
from skerry_core.models.stages import ModelStage
from skerry_core.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD
from skerry_core.weights.tensors import FORMATS, Bytes, FileTensor

_WIDTH_STEP = 32  # of feed-forward networks where it goes: weights that are narrowed share scales
_CUTS = {  # axis, and what it counts
    EMBEDDING: (-2, "vocabulary"),
    HEAD: (-2, "vocabulary"),
    "attn_q.weight": (-2, "queries"),
    "attn_k.weight": (-2, "keys"),
    "attn_v.weight": (-2, "keys"),
    "attn_q.bias": (-1, "queries"),
    "attn_k.bias": (-1, "keys"),
    "attn_v.bias": (-1, "keys"),
    "attn_sinks.weight": (-1, "heads"),
    "attn_output.weight": (-1, "queries"),
    "ffn_gate.weight": (-2, "width"),
    "ffn_up.weight": (-2, "width"),
    "ffn_down.weight": (-1, "width"),
    "ffn_gate_exps.weight": (-2, "expert width"),
    "ffn_up_exps.weight": (-2, "expert width"),
    "ffn_down_exps.weight": (-1, "expert width"),
    "ffn_gate_exps.bias": (-1, "expert width"),
    "ffn_up_exps.bias": (-1, "expert width"),
}
_ADDED_ONCE = ("attn_output.bias", "ffn_down_exps.bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one rank has of a model."""

    stage: ModelStage  # whose layers are here,
    tensor_rank: int = 0
    tensor_size: int = 1  # divided among so many ranks

    def tokens(self, config: ModelConfig) -> range:
        """Return the tokens whose rows of embedding and head are here: of the last ranks fewer
        where they do not divide."""
        each = -(-config.vocab_size // self.tensor_size)
        first, end = (min(each * (self.tensor_rank + i), config.vocab_size) for i in (0, 1))
        return range(first, end)

    def kv_heads(self, config: ModelConfig) -> range:
        """Return which of the model's KV heads are here; where there are more ranks than heads,
        several have one, each for some of its queries."""
        count, size = config.num_kv_heads, self.tensor_size
        if size > count:
            head = self.tensor_rank * count // size
            return range(head, head + 1)
        return _equal_part(count, self)


def whole_model(config: ModelConfig) -> Shard:
    """Return what one rank alone has."""
    return Shard(stage=ModelStage(0, config.num_layers, config.num_layers))


def sharded(
    config: ModelConfig, tensors: Mapping[str, FileTensor], shard: Shard
) -> tuple[ModelConfig, dict[str, FileTensor]]:
    """Return a rank's part of a model, as a model whose vocabulary alone is whole: its tied head is
    a tensor of its own where the embedding is not. Nothing is read yet.

    Raises ConfigError where heads, widths or blocks of quantised weights cannot be divided so.
    """
    _check(config, shard)
    parts = _parts(config, tensors, shard)
    stage = shard.stage
    own = {FINAL_NORM: tensors[FINAL_NORM]}  # of every stage: it says device and dtype
    for local, name in stage.tensors(config, tensors).items():
        module = local.split(".", 2)[-1] if local.startswith("blk.") else local
        is_head = local == EMBEDDING and not stage.is_first
        own[HEAD if is_head else local] = _own(name, module, tensors[name], parts, shard)
    experts = config.experts
    if experts is not None:
        experts = replace(experts, width=len(parts["expert width"]))
    local_config = replace(
        stage.config(config),
        num_heads=config.num_heads // shard.tensor_size,
        num_kv_heads=len(shard.kv_heads(config)),
        intermediate_size=len(parts["width"]),
        experts=experts,
    )
    return local_config, own


def _check(config: ModelConfig, shard: Shard) -> None:
    size = shard.tensor_size
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if heads % size or (kv_heads % size and size % kv_heads):
        raise ConfigError(
            f"{config.architecture}'s {heads} heads with {kv_heads} KV heads cannot be divided "
            f"among {size} tensor-parallel ranks"
        )
    if size > 1 and config.qk_norm == "whole":
        raise ConfigError(
            f"{config.architecture} has norms across the heads of q and k: tensor parallelism does "
            "not divide them, a pipeline does"
        )


def _parts(
    config: ModelConfig, tensors: Mapping[str, FileTensor], shard: Shard
) -> dict[str, range]:
    heads = _equal_part(config.num_heads, shard)
    keys = shard.kv_heads(config)
    width = config.head_dim
    parts = {
        "heads": heads,
        "queries": range(heads.start * width, heads.stop * width),
        "keys": range(keys.start * width, keys.stop * width),
        "width": _width_part("ffn_down", config.intermediate_size, tensors, shard),
        "vocabulary": shard.tokens(config),
    }
    if config.experts is not None:
        wide = config.experts.width
        parts["expert width"] = _width_part("ffn_down_exps", wide, tensors, shard)
    return parts


def _equal_part(count: int, shard: Shard) -> range:
    each = count // shard.tensor_size
    return range(shard.tensor_rank * each, (shard.tensor_rank + 1) * each)


def _width_part(module: str, width: int, tensors: Mapping[str, FileTensor], shard: Shard) -> range:
    """Cut the inputs of networks' last matrices between blocks of weights, as evenly as goes."""
    ends = f".{module}.weight"
    blocks = {FORMATS[each.format].block_size for n, each in tensors.items() if n.endswith(ends)}
    least = lcm(*blocks)
    step = lcm(least, _WIDTH_STEP)
    if width % step or width // step < shard.tensor_size:
        step = least
    count = width // step
    if count < shard.tensor_size:
        raise ConfigError(
            f"a feed-forward network of {width}, in blocks of {least} weights, cannot be divided "
            f"among {shard.tensor_size} tensor-parallel ranks"
        )
    first, end = (count * (shard.tensor_rank + i) // shard.tensor_size for i in (0, 1))
    return range(first * step, end * step)


def _own(
    name: str, module: str, tensor: FileTensor, parts: Mapping[str, range], shard: Shard
) -> FileTensor:
    if module in _ADDED_ONCE and shard.tensor_rank > 0:
        return FileTensor("F32", tensor.shape, _zeros(tensor.shape))
    if module not in _CUTS:
        return tensor
    axis, what = _CUTS[module]
    return _cut(name, tensor, axis, parts[what])


def _zeros(shape: tuple[int, ...]) -> Callable[[], Bytes]:
    return lambda: np.zeros(shape, np.float32).view(np.uint8)


def _cut(name: str, tensor: FileTensor, axis: int, part: range) -> FileTensor:
    """Cut columns (axis -1) or rows (-2) out of a tensor, or elements (-1) of a vector; no more is
    read of the file."""
    if len(part) == tensor.shape[axis]:
        return tensor
    try:
        return tensor.cut(axis, part)
    except ValueError as error:
        raise ConfigError(f"tensor {name!r} cannot be divided: {error}") from None
