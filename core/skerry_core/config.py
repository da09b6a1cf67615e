"""Frozen configuration of a model, its KV blocks and an engine. Derived values are properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK_SIZE = 64  # tokens per KV block; also the tile of attention, so changing it changes every bit

KVDtype = Literal["float16", "bfloat16", "float32"]


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the field and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's frequency-dependent scaling of rotary embeddings (Llama 3.1 model card)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder-only transformer. Sizes in elements, contexts in tokens."""

    architecture: str  # "llama", "qwen2", "qwen3", "mistral", "toy"
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    tied_embeddings: bool = True
    attention_bias: bool = False  # biases on q, k and v (Qwen2)
    qk_norm: bool = False  # RMSNorm on each head of q and k (Qwen3)
    sliding_window: int | None = None  # tokens (Mistral)

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_context",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFormat:
    """What a block of KV looks like in canonical form: `[layer][k,v][kv_head][64][head_dim]`.

    K is stored after RoPE, in half-split (NeoX) order.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KVDtype = "float16"

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, 2, self.num_kv_heads, BLOCK_SIZE, self.head_dim)

    @property
    def block_bytes(self) -> int:
        elements = self.num_layers * 2 * self.num_kv_heads * BLOCK_SIZE * self.head_dim
        return elements * (4 if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of one engine. Every queue is bounded; beyond a bound the caller is told."""

    max_running: int = 64  # sequences that hold KV blocks at once
    max_waiting: int = 1024  # requests queued for a place
    max_step_tokens: int = 512  # tokens computed in one step: the prefill chunk's upper bound
    max_gap_seconds: float = 0.03  # of a step with prompts that streams wait for; see `StepPrice`
    max_draft_tokens: int = 8  # of a stream in a step, see `speculation`; 0: none

    def __post_init__(self) -> None:
        for name in ("max_running", "max_waiting", "max_step_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.max_gap_seconds >= 0:
            raise ConfigError(f"max_gap_seconds must not be negative, got {self.max_gap_seconds}")
        if self.max_draft_tokens < 0:
            raise ConfigError(f"max_draft_tokens must not be negative, got {self.max_draft_tokens}")
