"""Gemma 3 (Gemma Team, 2025) for text and images, of which the text is computed.

Its config.json states of the text only what is unlike the defaults of that class.
"""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ModelConfig
from skerry_core.models.architectures import gemma3_text
from skerry_core.models.metadata import CheckpointMetadata

_DEFAULTS = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    return gemma3_text.read(metadata.with_defaults(_DEFAULTS))


ARCHITECTURE = replace(
    gemma3_text.ARCHITECTURE,
    read=read,
    text_section="text_config",
    text_prefixes=("model.language_model.", "language_model.model.", "language_model."),
    other_prefixes=(
        "vision_tower.", "model.vision_tower.",
        "multi_modal_projector.", "model.multi_modal_projector.",
    ),
)  # fmt: skip
