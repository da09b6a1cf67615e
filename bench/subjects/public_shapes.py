"""Shapes of published models, from their own config.json files: what speed is measured of."""

from __future__ import annotations

from collections.abc import Mapping

from skerry_core.config import ExpertsConfig, LayerConfig, ModelConfig, RopeConfig
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.rope_scaling import read_rope

_LLAMA_3 = {
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
_GPT_OSS = {
    "rope_theta": 150_000.0,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 4096,
    },
}  # fmt: skip


def _rope(stated: Mapping[str, object], head_dim: int) -> RopeConfig:
    return read_rope(CheckpointMetadata(stated, "config.json"), head_dim)


def _llama_3(layers: int, head_dim: int) -> tuple[LayerConfig, ...]:
    return (LayerConfig(rope=_rope(_LLAMA_3, head_dim)),) * layers


def _gpt_oss(layers: int) -> tuple[LayerConfig, ...]:
    rope = _rope(_GPT_OSS, 64)
    sliding, full = (LayerConfig(rope=rope, window=each, has_experts=True) for each in (128, None))
    return (sliding, full) * (layers // 2)


_QWEN_2 = LayerConfig(rope=RopeConfig(theta=1_000_000.0))
_QWEN_3_MOE = LayerConfig(rope=RopeConfig(theta=1_000_000.0), has_experts=True)

PUBLIC_SHAPES = {
    "llama-3.1-8b": ModelConfig(
        architecture="llama", layers=_llama_3(32, head_dim=128), hidden_size=4096,
        intermediate_size=14_336,
        num_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128_256, max_context=131_072,
        tied_embeddings=False,
    ),
    "llama-3.2-1b": ModelConfig(
        architecture="llama", layers=_llama_3(16, head_dim=64), hidden_size=2048,
        intermediate_size=8192,
        num_heads=32, num_kv_heads=8, head_dim=64, vocab_size=128_256, max_context=131_072,
    ),
    "qwen2.5-7b": ModelConfig(
        architecture="qwen2", layers=(_QWEN_2,) * 28, hidden_size=3584, intermediate_size=18_944,
        num_heads=28, num_kv_heads=4, head_dim=128, vocab_size=152_064, max_context=32_768,
        rms_norm_eps=1e-6, tied_embeddings=False, attention_bias=True,
    ),
    "qwen3-30b-a3b": ModelConfig(
        architecture="qwen3_moe", layers=(_QWEN_3_MOE,) * 48, hidden_size=2048,
        intermediate_size=6144, num_heads=32, num_kv_heads=4, head_dim=128, vocab_size=151_936,
        max_context=40_960, rms_norm_eps=1e-6, tied_embeddings=False, qk_norm="head",
        experts=ExpertsConfig(count=128, used=8, width=768),
    ),
    "gpt-oss-20b": ModelConfig(
        architecture="gpt_oss", layers=_gpt_oss(24), hidden_size=2880, intermediate_size=2880,
        num_heads=64, num_kv_heads=8, head_dim=64, vocab_size=201_088, max_context=131_072,
        tied_embeddings=False, attention_bias=True, output_bias=True, attention_sinks=True,
        activation="clamped",
        experts=ExpertsConfig(count=32, used=4, width=2880, has_biases=True),
    ),
}  # fmt: skip
