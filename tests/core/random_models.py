"""Small random models, written as GGUF and as safetensors, for tests of loaders and runners."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from skerry_core.config import ModelConfig, RopeConfig
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.registry import FAMILIES, family_of
from skerry_core.models.rope_scaling import read_rope
from skerry_core.models.tensor_names import expected_shapes

if TYPE_CHECKING:  # where no GGUF is written nothing that writes it is needed
    import gguf

Weights = dict[str, NDArray[np.float32]]
LLAMA3_JSON = {  # as `config.json` has it; what models with scaled frequencies are written with
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
INTERLEAVED = ("llama", "smollm3", "granite")  # whose Q and K llama.cpp's converter permutes


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Weights under GGUF names, Q and K in half-split order, scaled so that logits stay sane."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in expected_shapes(config).items():
        values = (
            rng.normal(size=shape) / np.sqrt(shape[-1])
            if len(shape) > 1
            else 0.1 * rng.normal(size=shape)
        )
        if "norm" in name:
            values = 1 + values
        weights[name] = values.astype(np.float32)
    return weights


def quantize_matrices(format_: str) -> Callable[[str], str]:
    """Formats as GGUF files have them: matrices in `format_`, vectors in F32."""
    return lambda name: "F32" if "norm" in name or name.endswith(".bias") else format_


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, NDArray[np.float32]],
    format_of: Callable[[str], str] = lambda name: "F32",
    metadata: Mapping[str, int | float | str] | None = None,
    also: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    has_tokens: bool = False,
) -> Path:
    """Write a GGUF file as llama.cpp's converter would, with some tokens. Returns `path`.

    `also` adds pairs that `metadata` cannot hold, the tokens where it `has_tokens` itself.
    """
    import gguf
    from bench.subjects.shaped_files import write_sizes
    from tests.core.k_quants import quantize_k

    architecture = FAMILIES[config.architecture] or "llama"
    writer = gguf.GGUFWriter(path, architecture)
    write_sizes(writer, config)
    if window := config.layers[0].window:
        writer.add_sliding_window(window)
    if not has_tokens:
        writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    also(writer)
    for key, value in (metadata or {}).items():
        match value:
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
    for name, values in weights.items():
        if architecture in INTERLEAVED and (".attn_q." in name or ".attn_k." in name):
            values = interleaved(values, config.head_dim)
        kind = gguf.GGMLQuantizationType[format_of(name)]
        quantize = (
            quantize_k if kind.name.startswith("IQ") or kind.name.endswith("_K") else _quantize
        )
        writer.add_tensor(name, quantize(values, kind.name), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantize(values: NDArray[Any], format_: str) -> NDArray[Any]:
    import gguf

    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[format_])


def mixed(name: str) -> str:
    """Formats as in a Q4_K_M file of llama.cpp, the embedding as in one that ties it."""
    if "norm" in name or name.endswith(".bias"):
        return "F32"
    if name in ("token_embd.weight", "output.weight"):
        return "Q6_K"
    is_chosen = ".attn_v." in name or ".ffn_down." in name
    return "Q6_K" if is_chosen and ".0." in name else "Q4_K"


def interleaved(values: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Rows of Q or K from half-split to the order in which GGUF stores Llama's."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def write_safetensors(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, NDArray[np.float32]],
    **json_fields: Any,
) -> Path:
    """Write `model.safetensors` and `config.json` as Transformers would. Returns the former."""
    path = folder / "model.safetensors"
    family, rope = config.architecture, rope_of(config)
    save_file({hugging_face_name(name, family): each for name, each in weights.items()}, path)
    fields: dict[str, Any] = {
        "model_type": config.architecture,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_context,
        "rope_theta": rope.theta,
        "rope_scaling": LLAMA3_JSON if rope.multipliers else None,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "sliding_window": config.layers[0].window,
        "no_rope_layers": [int(layer.rope is not None) for layer in config.layers],
    }
    (folder / "config.json").write_text(json.dumps(fields | json_fields))
    return path


def scaled_rope(rope_scaling: Mapping[str, Any], rotary_dim: int, theta: float) -> RopeConfig:
    """Return what is read where `config.json` has such a `rope_scaling`."""
    values = {"rope_scaling": rope_scaling, "rope_theta": theta, "max_position_embeddings": 512}
    return read_rope(CheckpointMetadata(values, "config.json"), rotary_dim)


def hugging_face_name(name: str, model_type: str) -> str:
    """Return a tensor's name in safetensors files of a family."""
    module, kind = name.rsplit(".", 1)
    layer = module.split(".")[1] if module.startswith("blk.") else ""
    pattern = module.replace(f"blk.{layer}.", "blk.*.")
    tensors = family_of(model_type).architecture.tensors.items()
    names = {ours: theirs for theirs, ours in tensors if isinstance(ours, str)}
    return names[pattern].replace("*", layer) + "." + kind


def alike(config: ModelConfig, **fields: Any) -> ModelConfig:
    """Return a configuration with something changed in every layer: fields of `LayerConfig`."""
    return replace(config, layers=tuple(replace(layer, **fields) for layer in config.layers))


def rope_of(config: ModelConfig) -> RopeConfig:
    """Return the rotary embeddings of the layers that have some."""
    return next(layer.rope for layer in config.layers if layer.rope is not None)
