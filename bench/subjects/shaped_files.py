"""GGUF files of random weights in public shapes, in the formats that llama.cpp's quantiser gives
them: for measuring speed at the sizes that people run.

Blocks are random bits under scales that give weights the spread of a trained layer's, so that
states stay sane and routers spread tokens over their experts. There is a vocabulary, and a chat
template, where another file lends them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from bench.subjects.public_shapes import PUBLIC_SHAPES
from skerry_core.config import ModelConfig
from skerry_core.models.registry import FAMILIES
from skerry_core.models.tensor_names import EMBEDDING, HEAD, expected_shapes

Bytes = NDArray[np.uint8]
FormatOf = Callable[[str, ModelConfig], str]

_POOL = 32_749  # blocks, a prime: rows differ
_PIECE = 64 << 20  # bytes written at once


@dataclass(frozen=True)
class Shape:
    """A published model, cut to so many layers that its file, its packed copy and that of a peer
    fit 16 GB."""

    model: str  # in PUBLIC_SHAPES
    layers: int
    format_of: FormatOf

    @property
    def config(self) -> ModelConfig:
        config = PUBLIC_SHAPES[self.model]
        return replace(config, layers=config.layers[: self.layers])


def q4_k_m(name: str, config: ModelConfig) -> str:
    """Return a tensor's format as llama.cpp's quantiser chooses it for Q4_K_M (llama-quant.cpp)."""
    if name == HEAD or (name == EMBEDDING and config.tied_embeddings):
        return "Q6_K"
    if ".attn_v." in name or ".ffn_down" in name:
        layer, eighth = int(name.split(".")[1]), config.num_layers // 8
        is_edge = layer < eighth or layer >= 7 * config.num_layers // 8
        return "Q6_K" if is_edge or (layer - eighth) % 3 == 2 else "Q4_K"
    return "Q4_K"


def mxfp4(name: str, config: ModelConfig) -> str:
    """Return a tensor's format in gpt-oss's own GGUF files: 2880 is no multiple of 256."""
    return "MXFP4" if "_exps." in name else "Q8_0"


SHAPES = {
    "llama-3.2-1b": Shape("llama-3.2-1b", 16, q4_k_m),
    "llama-3.1-8b": Shape("llama-3.1-8b", 32, q4_k_m),
    "qwen3-30b-a3b-layers": Shape("qwen3-30b-a3b", 6, q4_k_m),
    "gpt-oss-layers": Shape("gpt-oss-20b", 4, mxfp4),
}


def shaped_file(name: str, folder: Path, layers: int | None = None) -> Path:
    """Return the file of a shape in `folder`, written on first use; with fewer layers if asked."""
    shape = SHAPES[name]
    shape = replace(shape, layers=min(layers or shape.layers, shape.layers))
    path = folder / f"{name}-{shape.layers}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        write_shaped(partial, shape.config, shape.format_of)
        os.replace(partial, path)
    return path


def write_shaped(
    path: Path, config: ModelConfig, format_of: FormatOf, words: Path | None = None
) -> None:
    """Write a GGUF file of a model, piece by piece, with the tokenizer of the file `words`."""
    writer = gguf.GGUFWriter(path, FAMILIES[config.architecture] or "llama")
    _write_metadata(writer, config)
    if words is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        _copy_tokenizer(writer, words)
    rng = np.random.default_rng(0)
    tensors: list[tuple[int, Callable[[], Bytes]]] = []
    for name, shape in _shapes(config).items():
        is_vector = len(shape) == 1 or name.endswith(".bias")
        kind = "F32" if is_vector or ".ffn_gate_inp." in name else format_of(name, config)
        quant = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[quant]
        num_bytes = prod(shape) // block * size
        writer.add_tensor_info(name, shape, np.dtype(np.float32), num_bytes, quant)
        if kind == "F32":
            values = _floats(name, shape, config, rng)
            tensors.append((num_bytes, lambda values=values: values.view(np.uint8).reshape(-1)))
        else:
            make = _pool_of(kind, shape[-1] ** -0.5, rng)
            tensors.append((num_bytes, make))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    (file,) = writer.fout or []
    writer.write_padding(file, file.tell())
    for num_bytes, make in tensors:
        piece = make()
        for start in range(0, num_bytes, len(piece)):
            file.write(piece[: num_bytes - start].data)
        writer.write_padding(file, num_bytes)
    writer.close()


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a file under llama.cpp's names: divisors of Llama 3's frequencies are
    one, and gpt-oss's second norm has another name."""
    shapes, rope = expected_shapes(config), config.layers[0].rope
    if config.architecture == "llama" and rope is not None and rope.multipliers:
        shapes["rope_freqs.weight"] = (config.head_dim // 2,)
    if config.architecture != "gpt_oss":
        return shapes
    return {name.replace("ffn_norm", "post_attention_norm"): each for name, each in shapes.items()}


def _floats(
    name: str, shape: tuple[int, ...], config: ModelConfig, rng: np.random.Generator
) -> NDArray[np.float32]:
    rope = config.layers[0].rope
    if name == "rope_freqs.weight" and rope is not None:
        return (1 / np.array(rope.multipliers)).astype(np.float32)
    if "norm" in name:
        return np.ones(shape, np.float32)
    scale = shape[-1] ** -0.5 if len(shape) > 1 and not name.endswith(".bias") else 0.02
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _pool_of(kind: str, spread: float, rng: np.random.Generator) -> Callable[[], Bytes]:
    """Return what makes blocks whose values have a mean near 0 and this standard deviation."""
    seed = int(rng.integers(1 << 31))

    def make() -> Bytes:
        size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
        own = np.random.default_rng(seed)
        blocks = np.frombuffer(own.bytes(_POOL * size), np.uint8).reshape(_POOL, size).copy()
        _SCALES[kind](blocks, spread)
        return np.tile(blocks, (max(1, _PIECE // blocks.size), 1)).reshape(-1)

    return make


def _set_half(blocks: Bytes, at: int, value: float) -> None:
    blocks[:, at : at + 2] = np.array([value], np.float16).view(np.uint8)


def _scale_q4_k(blocks: Bytes, spread: float) -> None:
    _set_half(blocks, 0, spread / 258)  # of 6-bit scales and quants of 0 to 15, all as likely
    _set_half(blocks, 2, 7.5 * spread / 258)


def _scale_q6_k(blocks: Bytes, spread: float) -> None:
    _set_half(blocks, 208, spread / 1365)


def _scale_q8_0(blocks: Bytes, spread: float) -> None:
    _set_half(blocks, 0, spread / 74)


def _scale_mxfp4(blocks: Bytes, spread: float) -> None:
    blocks[:, 0] = 127 + round(np.log2(spread / 2.93))


_SCALES: dict[str, Callable[[Bytes, float], None]] = {
    "Q4_K": _scale_q4_k,
    "Q6_K": _scale_q6_k,
    "Q8_0": _scale_q8_0,
    "MXFP4": _scale_mxfp4,
}


def _copy_tokenizer(writer: gguf.GGUFWriter, words: Path) -> None:
    for key, field in gguf.GGUFReader(words).fields.items():
        if key.startswith("tokenizer."):
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, sub_type=inner[0] if inner else None)


def write_sizes(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Write what every file says of its decoder's shape."""
    writer.add_context_length(config.max_context)
    writer.add_block_count(config.num_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    ropes = (layer.rope for layer in config.layers)
    if (rope := next((rope for rope in ropes if rope is not None), None)) is not None:
        writer.add_rope_freq_base(rope.theta)


def _write_metadata(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    write_sizes(writer, config)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if config.experts is not None:
        writer.add_expert_count(config.experts.count)
        writer.add_expert_used_count(config.experts.used)
        writer.add_expert_feed_forward_length(config.experts.width)
    if config.architecture == "gpt_oss":
        writer.add_sliding_window(config.layers[0].window or 0)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
