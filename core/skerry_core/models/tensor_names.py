"""Names and shapes of a model's tensors, whatever file they come from.

Ours are mostly GGUF's: `blk.3.attn_q.weight`. In patterns `*` is a layer's number, `#` an expert's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from skerry_core.config import ModelConfig

EMBEDDING, HEAD, FINAL_NORM = "token_embd.weight", "output.weight", "output_norm.weight"


@dataclass(frozen=True, slots=True)
class Fused:
    """A tensor of a file whose rows are several of ours: one after the other, or in turn."""

    names: tuple[str, ...]
    in_turn: bool = False  # row i belongs to part i modulo their number
    transposed: bool = False  # the file has [..., inputs, outputs]


TensorNames = Mapping[str, str | Fused]
"""A file's names of modules (`.weight` or `.bias` is added) or of whole tensors, and ours."""

LLAMA_TENSORS: TensorNames = {
    "model.embed_tokens": "token_embd",
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.self_attn.q_proj": "blk.*.attn_q",
    "model.layers.*.self_attn.k_proj": "blk.*.attn_k",
    "model.layers.*.self_attn.v_proj": "blk.*.attn_v",
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
    "model.layers.*.self_attn.q_norm": "blk.*.attn_q_norm",
    "model.layers.*.self_attn.k_norm": "blk.*.attn_k_norm",
    "model.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
    "model.layers.*.mlp.gate_proj": "blk.*.ffn_gate",
    "model.layers.*.mlp.up_proj": "blk.*.ffn_up",
    "model.layers.*.mlp.down_proj": "blk.*.ffn_down",
    "model.norm": "output_norm",
    "lm_head": "output",
}
"""Hugging Face's names of a Llama's modules."""

_NUMBER = re.compile(r"(?<=\.)\d{1,4}(?=\.|$)")


class TensorPlace(NamedTuple):
    """Where a tensor of a file belongs."""

    names: tuple[str, ...]  # of ours
    fused: Fused | None  # how they lie in it, where they are several
    expert: int | None  # which of a stack of experts it is; None: all of it


def layer_tensor(layer: int, name: str) -> str:
    """Return the name of a layer's tensor, e.g. `blk.3.attn_q.weight`."""
    return f"blk.{layer}.{name}.weight"


def place_of(name: str, names: TensorNames) -> TensorPlace | None:
    """Return where a file's tensor belongs, by a map of patterns; None where it has no place."""
    module, _, kind = name.rpartition(".")
    for theirs, suffix in ((name, ""), (module, f".{kind}")):
        layer, expert, *_ = [*_NUMBER.findall(theirs), None, None]
        pattern = _NUMBER.sub("*", theirs, count=1)
        target = names.get(_NUMBER.sub("#", pattern, count=1))
        if target is None:
            continue
        patterns = (target,) if isinstance(target, str) else target.names
        ours = tuple(each.replace("*", layer or "") + suffix for each in patterns)
        fused = None if isinstance(target, str) else target
        return TensorPlace(ours, fused, None if expert is None else int(expert))
    return None


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of such a model; matrices are [outputs, inputs], those
    of experts [experts, outputs, inputs]."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        FINAL_NORM: (hidden,),
    }
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    attention = _attention_shapes(config)
    for index, layer in enumerate(config.layers):
        own = _expert_shapes(config) if layer.has_experts else _dense_shapes(config)
        named = (attention | own).items()
        shapes |= {f"blk.{index}.{name}": shape for name, shape in named}
    return shapes


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return what all layers of a model have."""
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (queries, hidden),
        "attn_k.weight": (keys, hidden),
        "attn_v.weight": (keys, hidden),
        "attn_output.weight": (hidden, queries),
    }
    if config.norms_before:
        shapes |= {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    if config.norms_after:
        shapes |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    if config.attention_bias:
        shapes |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config.output_bias:
        shapes["attn_output.bias"] = (hidden,)
    if config.qk_norm is not None:
        whole = config.qk_norm == "whole"
        shapes["attn_q_norm.weight"] = (queries if whole else config.head_dim,)
        shapes["attn_k_norm.weight"] = (keys if whole else config.head_dim,)
    if config.attention_sinks:
        shapes["attn_sinks.weight"] = (config.num_heads,)
    return shapes


def _dense_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, wide = config.hidden_size, config.intermediate_size
    return {
        "ffn_gate.weight": (wide, hidden),
        "ffn_up.weight": (wide, hidden),
        "ffn_down.weight": (hidden, wide),
    }


def _expert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    experts, hidden = config.experts, config.hidden_size
    if experts is None:
        return {}
    count, wide = experts.count, experts.width
    shapes: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp.weight": (count, hidden),
        "ffn_gate_exps.weight": (count, wide, hidden),
        "ffn_up_exps.weight": (count, wide, hidden),
        "ffn_down_exps.weight": (count, hidden, wide),
    }
    if experts.has_biases:
        shapes |= {
            "ffn_gate_inp.bias": (count,),
            "ffn_gate_exps.bias": (count, wide),
            "ffn_up_exps.bias": (count, wide),
            "ffn_down_exps.bias": (count, hidden),
        }
    return shapes
