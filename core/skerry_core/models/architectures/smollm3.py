"""SmolLM3 (Hugging Face, 2025): a Llama without rotary embeddings in every fourth layer.

That is NoPE, after Yang et al., "Rope to Nope and Back Again", 2025. GGUF does not state it.
"""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        metadata.refuse(key)
    config = llama.read(metadata)
    interval = metadata.integer("no_rope_layer_interval", 4)
    is_rotary = [index % interval != 0 for index in range(1, config.num_layers + 1)]
    if metadata.has("no_rope_layers"):  # 1 where there are rotary embeddings, despite the name
        is_rotary = metadata.sequence("no_rope_layers")
        if len(is_rotary) != config.num_layers or any(each not in (0, 1) for each in is_rotary):
            raise metadata.bad("no_rope_layers")
    layers = zip(config.layers, is_rotary, strict=True)
    return replace(
        config,
        layers=tuple(layer if rotary else replace(layer, rope=None) for layer, rotary in layers),
        tied_embeddings=metadata.flag("tie_word_embeddings", True),
    )


ARCHITECTURE = Architecture(read=read, interleaves_pairs=True)
