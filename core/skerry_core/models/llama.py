"""Llama (Touvron et al., 2023) and its kin: what the CPU kernels must know of the architecture.

Qwen2 has biases on q, k and v, Qwen3 norms on the heads of q and k, Mistral a window of attention;
the rest is the same arithmetic.
"""

from __future__ import annotations

from skerry_core.config import ConfigError, ModelConfig

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
LAYER_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
LAYER_BIASES = ("attn_q", "attn_k", "attn_v")
LAYER_NORMS = ("attn_norm", "ffn_norm")
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
EMBEDDING, HEAD, FINAL_NORM = "token_embd.weight", "output.weight", "output_norm.weight"

_HEAD_DIM_UNIT = 16  # a vector of attention
_SIZE_UNIT = 32  # a block of quantised activations


def layer_tensor(layer: int, name: str, kind: str = "weight") -> str:
    """The name of a layer's tensor, e.g. `blk.3.attn_q.weight`."""
    return f"blk.{layer}.{name}.{kind}"


def matrix_names(config: ModelConfig) -> list[str]:
    """Every weight matrix of the model, embedding and head included."""
    names = [EMBEDDING] if config.tied_embeddings else [EMBEDDING, HEAD]
    for layer in range(config.num_layers):
        names += [layer_tensor(layer, name) for name in LAYER_MATRICES]
    return names


def vector_names(config: ModelConfig) -> list[str]:
    """Every norm weight and bias of the model."""
    names = [FINAL_NORM]
    for layer in range(config.num_layers):
        names += [layer_tensor(layer, name) for name in LAYER_NORMS]
        if config.attention_bias:
            names += [layer_tensor(layer, name, "bias") for name in LAYER_BIASES]
        if config.qk_norm:
            names += [layer_tensor(layer, name) for name in HEAD_NORMS]
    return names


def check_supported(config: ModelConfig) -> None:
    """Raise ConfigError, naming field and value, for a model that the CPU kernels cannot run."""
    if config.architecture not in ARCHITECTURES:
        raise ConfigError(
            f"architecture {config.architecture!r} does not run on the CPU kernels; "
            f"{', '.join(ARCHITECTURES)} do"
        )
    sizes = {
        "head_dim": (config.head_dim, _HEAD_DIM_UNIT),
        "hidden_size": (config.hidden_size, _SIZE_UNIT),
        "intermediate_size": (config.intermediate_size, _SIZE_UNIT),
        "num_heads * head_dim": (config.num_heads * config.head_dim, _SIZE_UNIT),
    }
    for name, (size, unit) in sizes.items():
        if size % unit:
            raise ConfigError(f"{name} must be a multiple of {unit} on the CPU, got {size}")
