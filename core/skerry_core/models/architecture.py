"""A family of decoders: what its files say, and where its tensors lie in them.

A family is one file in `architectures/`, whose ARCHITECTURE is one of these, and one line in
`registry`. `read` mostly begins with Llama's and replaces what the family does unlike it. That is
data: the back ends read it in `ModelConfig`, and refuse what they do not have. A family of a new
kind adds a field and a `Feature` there, and the back ends follow one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from skerry_core.config import ModelConfig
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.tensor_names import LLAMA_TENSORS, Fused, TensorNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How models of one family are read, from GGUF and from safetensors."""

    read: Callable[[CheckpointMetadata], ModelConfig]
    """Makes the configuration. Raises WeightsError or ConfigError for what is not supported."""
    tensors: TensorNames = field(default_factory=lambda: LLAMA_TENSORS)
    """Hugging Face's names and ours."""
    gguf_tensors: TensorNames = field(default_factory=dict[str, str])
    """GGUF's names that are not ours."""
    interleaves_pairs: bool = False
    """Rows of Q and K lie in GGUF with rotary pair (i, i + head_dim / 2) as (2 i, 2 i + 1)."""
    norms_plus_one: bool = False
    """Safetensors have the weights of norms less one. GGUF has them whole."""
    text_section: str | None = None
    """Key of config.json under which a model of text and images describes its text."""
    text_prefixes: tuple[str, ...] = ()
    """What may stand before the names of tensors of the text, and for what."""
    other_prefixes: tuple[str, ...] = ()
    """Names of tensors that begin so are not of the text, and are left out."""


def renamed(changes: Mapping[str, str | Fused]) -> TensorNames:
    """Return Llama's names with some of another family's in place of them."""
    return {**LLAMA_TENSORS, **changes}
