"""Every family of decoders that is supported, as small configurations of transformers.

Windows are exceeded three times by the tests' 150 tokens, and original contexts twice; caps are
reached; a family's last layers are not like its first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gguf
from tests.core.random_models import LLAMA3_JSON

SLIDING, FULL = "sliding_attention", "full_attention"
_ARCH = gguf.MODEL_ARCH
_WINDOW = {"use_sliding_window": True, "sliding_window": 45}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA = {"sliding_window": 45, "query_pre_attn_scalar": 24}
_QWEN3_MOE = {"num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1 + 0.1 * i for i in range(6)],
    "long_factor": [2 + 0.7 * i for i in range(6)],
}


@dataclass(frozen=True)
class Family:
    """A model of transformers, and what llama.cpp's converter would state of it."""

    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)  # of its configuration
    arch: gguf.MODEL_ARCH | None = None  # in GGUF, which states all that there is
    metadata: dict[str, Any] = field(default_factory=dict)  # beside what all files state
    seed: int = 0  # with experts one whose routers are sure: KV is in float16 on some back ends


FAMILIES = {
    "llama": Family(
        "llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 500_000.0, **LLAMA3_JSON},
        },
    ),
    "llama, linear": Family(
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        _ARCH.LLAMA,
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "mistral": Family("mistral", {"sliding_window": 45}, _ARCH.LLAMA),
    "qwen2": Family("qwen2", _WINDOW | {"max_window_layers": 0}, _ARCH.QWEN2),
    "qwen2, windows in some layers": Family("qwen2", _WINDOW | {"max_window_layers": 1}),
    "qwen2, YaRN": Family(
        "qwen2",
        {"rope_parameters": _YARN},
        _ARCH.QWEN2,
        {
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 64,
        },
    ),
    "qwen3": Family("qwen3", _WINDOW | {"max_window_layers": 4}, _ARCH.QWEN3),
    "smollm3": Family("smollm3", {}, _ARCH.SMOLLM3),
    "smollm3, another pattern": Family(
        "smollm3", {"no_rope_layers": [0, 1, 1, 0], "tie_word_embeddings": False}
    ),
    "gemma2": Family(
        "gemma2",
        _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        None,
    ),
    "gemma2, as in GGUF": Family(
        "gemma2",
        _GEMMA
        | {
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        _ARCH.GEMMA2,
        {"gemma2.attn_logit_softcapping": 2.0, "gemma2.final_logit_softcapping": 3.0},
    ),
    "gemma3": Family("gemma3_text", _GEMMA | {"num_hidden_layers": 7}),
    "gemma3, as in GGUF": Family(
        "gemma3_text",
        _GEMMA
        | {
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 16,
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
                FULL: {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            },
        },
        _ARCH.GEMMA3,
        {
            "gemma3.rope.freq_base": 1_000_000.0,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    ),
    "phi3": Family("phi3", {"sliding_window": 45}, _ARCH.PHI3),
    "phi3, a part of each head and LongRoPE": Family(
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.75,
            "rope_scaling": _LONGROPE,
            "tie_word_embeddings": True,
        },
        _ARCH.PHI3,
        {
            "phi3.rope.dimension_count": 12,
            "phi3.rope.scaling.original_context_length": 64,
            "phi3.attention.sliding_window": 0,
        },
    ),
    "phi3, LongRoPE within the original context": Family(
        "phi3",
        {
            "original_max_position_embeddings": 1024,
            "partial_rotary_factor": 0.75,
            "rope_scaling": _LONGROPE,
        },
    ),
    "granite": Family(
        "granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.5,
            "logits_scaling": 8.0,
        },
        _ARCH.GRANITE,
        {
            "granite.embedding_scale": 12.0,
            "granite.residual_scale": 0.22,
            "granite.attention.scale": 0.5,
            "granite.logit_scale": 8.0,
        },
    ),
    "olmo2": Family("olmo2", {}, _ARCH.OLMO2),
    "mixtral": Family(
        "mixtral",
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        _ARCH.LLAMA,
        {"llama.expert_count": 8, "llama.expert_used_count": 2},
    ),
    "qwen3_moe": Family(
        "qwen3_moe",
        _QWEN3_MOE | {"norm_topk_prob": True},
        _ARCH.QWEN3MOE,
        {
            "qwen3moe.expert_count": 9,
            "qwen3moe.expert_used_count": 3,
            "qwen3moe.expert_feed_forward_length": 32,
        },
        seed=1,
    ),
    "qwen3_moe, shares of all and a dense layer": Family(
        "qwen3_moe", _QWEN3_MOE | {"norm_topk_prob": False, "mlp_only_layers": [1]}
    ),
    "gpt_oss": Family(
        "gpt_oss",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "sliding_window": 45,
            "rope_parameters": _YARN | {"truncate": False, "beta_fast": 8.0},
        },
        _ARCH.GPT_OSS,
        {
            "gpt-oss.expert_count": 8,
            "gpt-oss.expert_used_count": 3,
            "gpt-oss.expert_feed_forward_length": 96,
            "gpt-oss.rope.scaling.type": "yarn",
            "gpt-oss.rope.scaling.factor": 4.0,
            "gpt-oss.rope.scaling.original_context_length": 64,
            "gpt-oss.rope.scaling.yarn_beta_fast": 8.0,
        },
        seed=15,
    ),
}  # fmt: skip
