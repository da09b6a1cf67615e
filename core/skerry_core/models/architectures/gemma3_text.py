"""Gemma 3 (Gemma Team, 2025), its text: norms around each branch and of the heads of q and k, and a
window with rotary embeddings of its own in five layers of six.

EmbeddingGemma (2025) is one whose tokens see those behind them too.
GGUF states neither the windows' pattern nor the scale of attention, and older files not the
windows' rotary embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.architectures import gemma2, llama
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.rope_scaling import read_rope, rope_section

_LAYERS_OF_27B = 62  # whose scale is that of hidden_size / num_heads, not of head_dim
_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        metadata.refuse(key)
    by_kind = rope_section(metadata)
    has_kinds = by_kind.has(llama.FULL)
    full = by_kind.section(llama.FULL) if has_kinds else by_kind
    sliding = by_kind.section(llama.SLIDING) if has_kinds else None
    metadata = metadata.with_defaults({"rope_theta": _THETA})
    plain = metadata.without("rope_parameters", "rope_scaling")
    config = gemma2.read_gemma(plain, layers_of_27b=_LAYERS_OF_27B)
    pattern = metadata.integer("sliding_window_pattern", 6)
    slides = llama.layer_kinds(metadata, config.num_layers, lambda i: (i + 1) % pattern != 0)
    local_theta = metadata.number("rope_local_base_freq", _LOCAL_THETA)
    local = RopeConfig(theta=local_theta)
    if sliding is not None:
        local = read_rope(plain, config.head_dim, section=sliding)
    global_ = read_rope(plain, config.head_dim, section=full)
    window = metadata.integer("sliding_window", metadata.integer("window", 4096))
    layers = {
        True: LayerConfig(rope=local, window=window),
        False: LayerConfig(rope=global_),
    }
    return replace(
        config,
        layers=tuple(layers[each] for each in slides),
        qk_norm="head",
        is_bidirectional=metadata.flag("use_bidirectional_attention", False),
    )


TENSORS = gemma2.GEMMA_TENSORS
ARCHITECTURE = Architecture(read=read, tensors=TENSORS, norms_plus_one=True)
