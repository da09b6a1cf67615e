"""Frozen configuration of a model, its KV blocks and an engine. Derived values are properties."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from skerry_core.pins import PIN_SHARE

BLOCK_SIZE = 64  # tokens per KV block; also the tile of attention, so changing it changes every bit

KVDtype = Literal["float16", "bfloat16", "float32"]


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the field and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embeddings (Su et al., 2021), halves rotated; see `models.rope_scaling`."""

    theta: float = 10_000.0
    multipliers: tuple[float, ...] = ()  # of each frequency, where they are scaled
    amplitude: float = 1.0  # of cosines and sines (YaRN's attention factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A feed-forward network of experts, of which a router chooses some for each token.

    A router's score is a linear function of the normed row. The experts with the largest scores are
    chosen, the lower number of equal ones, and weighted by the softmax of their scores.
    """

    count: int
    used: int  # by each token
    width: int  # of an expert
    weighs_chosen: bool = True  # the softmax is over the chosen experts' scores, else over all
    has_biases: bool = False  # on the router and on all three products (gpt-oss)

    def __post_init__(self) -> None:
        if not 1 <= self.used <= self.count:
            raise ConfigError(f"{self.used} of {self.count} experts cannot be chosen")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What a layer may have unlike its neighbours."""

    rope: RopeConfig | None = RopeConfig()  # None: queries and keys are not rotated
    window: int | None = None
    """Tokens that a token sees, itself included; None: all before it. In both directions half as
    many on each side; None: all."""
    has_experts: bool = False  # in place of one feed-forward network


Activation = Literal["silu", "gelu_tanh", "clamped"]
"""Of gated feed-forward networks: `silu(g) * u` (Shazeer, 2020), `gelu(g) * u` with tanh's
approximation (Hendrycks and Gimpel, 2016), or gpt-oss's: with g and u clamped to 7,
`(u + 1) * g * sigmoid(1.702 * g)`."""

BackEnd = Literal["numba", "torch", "jax", "triton"]
_EVERYWHERE: tuple[BackEnd, ...] = ("numba", "torch", "jax", "triton")
_NOT_TRITON: tuple[BackEnd, ...] = ("numba", "torch", "jax")
_NUMBA_AND_TORCH: tuple[BackEnd, ...] = ("numba", "torch")


class Feature(NamedTuple):
    """What a model may have beyond a plain Llama."""

    back_ends: tuple[BackEnd, ...]  # those that compute it
    is_in: Callable[[ModelConfig], bool]


FEATURES: dict[str, Feature] = {
    "biases of q, k and v": Feature(_EVERYWHERE, lambda c: c.attention_bias),
    "a bias of attention's output": Feature(_NUMBA_AND_TORCH, lambda c: c.output_bias),
    "norms of the heads of q and k": Feature(_EVERYWHERE, lambda c: c.qk_norm == "head"),
    "norms across the heads of q and k": Feature(_NOT_TRITON, lambda c: c.qk_norm == "whole"),
    "norms after each branch": Feature(_NOT_TRITON, lambda c: c.norms_after),
    "branches without a norm before them": Feature(_NOT_TRITON, lambda c: not c.norms_before),
    "GELU": Feature(_NOT_TRITON, lambda c: c.activation == "gelu_tanh"),
    "a clamped activation": Feature(_NUMBA_AND_TORCH, lambda c: c.activation == "clamped"),
    "scaled rotary embeddings": Feature(
        _EVERYWHERE, lambda c: any(r.multipliers or r.amplitude != 1 for r in c.ropes)
    ),
    "rotary embeddings of a part of each head": Feature(
        _NOT_TRITON, lambda c: c.rotated != c.head_dim
    ),
    "layers without rotary embeddings": Feature(
        _EVERYWHERE, lambda c: any(each.rope is None for each in c.layers)
    ),
    "rotary embeddings that differ by layer": Feature(_EVERYWHERE, lambda c: len(c.ropes) > 1),
    "a sliding window": Feature(_EVERYWHERE, lambda c: c.windows != [None]),
    "sliding windows that differ by layer": Feature(_EVERYWHERE, lambda c: len(c.windows) > 1),
    "an attention scale of its own": Feature(
        _NOT_TRITON, lambda c: c.attention_scale not in (None, c.head_dim**-0.5)
    ),
    "capped scores": Feature(_NOT_TRITON, lambda c: c.score_cap is not None),
    "capped logits": Feature(_NOT_TRITON, lambda c: c.logit_cap is not None),
    "attention sinks": Feature(_NUMBA_AND_TORCH, lambda c: c.attention_sinks),
    "scaled embeddings": Feature(_NOT_TRITON, lambda c: c.embedding_scale != 1),
    "scaled branches": Feature(_NOT_TRITON, lambda c: c.residual_scale != 1),
    "scaled logits": Feature(_NOT_TRITON, lambda c: c.logit_scale != 1),
    "experts": Feature(_NUMBA_AND_TORCH, lambda c: any(each.has_experts for each in c.layers)),
    # of models that embed, see `encoder.decoder_network`
    "attention in both directions": Feature((), lambda c: c.is_bidirectional),
}
"""By name. Back ends without one refuse a model by the feature's name when they open it.

`torch` is Torch without Triton's kernels, on a CPU or where a device has none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a decoder-only transformer computes. Sizes in elements, contexts in tokens.

    The plain case is Llama (Touvron et al., 2023). Whatever a family does unlike it is a field here
    and a `Feature`, so that a back end that has not heard of it refuses.
    """

    architecture: str  # a family of `models.registry`, or "toy"
    layers: tuple[LayerConfig, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    rms_norm_eps: float = 1e-5
    tied_embeddings: bool = True
    attention_bias: bool = False  # biases on q, k and v (Qwen2)
    output_bias: bool = False  # on attention's output (gpt-oss)
    qk_norm: Literal["head", "whole"] | None = (
        None  # RMSNorm on q and k: heads (Qwen3), all (OLMo2)
    )
    norms_before: bool = True  # of attention and of the feed-forward network
    norms_after: bool = False  # of what each adds (Gemma 2)
    activation: Activation = "silu"
    rotary_dim: int | None = None  # rotated dimensions of each head, the first ones; None: all
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    score_cap: float | None = None  # c in c * tanh(score / c)
    logit_cap: float | None = None
    attention_sinks: bool = False  # a learned logit per head in the softmax, which sees no value
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what each branch adds
    logit_scale: float = 1.0
    experts: ExpertsConfig | None = None
    is_bidirectional: bool = False  # a token sees those behind it too (EmbeddingGemma)

    def __post_init__(self) -> None:
        _check_counts(self, "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
        _check_counts(self, "intermediate_size", "vocab_size", "max_context")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        for name in ("head_dim", "rotated"):
            if getattr(self, name) % 2:
                size = getattr(self, name)
                raise ConfigError(f"{name} must be even for rotary embeddings, got {size}")
        if not 0 < self.rotated <= self.head_dim:
            raise ConfigError(f"{self.rotated} of {self.head_dim} dimensions cannot be rotated")
        for rope in self.ropes:
            if len(rope.multipliers) not in (0, self.rotated // 2):
                raise ConfigError(
                    f"rotary scaling has {len(rope.multipliers)} factors, "
                    f"{self.rotated // 2} frequencies want one each"
                )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def rotated(self) -> int:
        """Return dimensions of each head that are rotated."""
        return self.rotary_dim or self.head_dim

    @property
    def ropes(self) -> list[RopeConfig]:
        """Return the distinct rotary embeddings of layers, in their order."""
        return list(dict.fromkeys(each.rope for each in self.layers if each.rope is not None))

    @property
    def windows(self) -> list[int | None]:
        """Return the distinct windows of layers, in their order."""
        return list(dict.fromkeys(layer.window for layer in self.layers))

    @property
    def features(self) -> frozenset[str]:
        """Return the names of what the model has beyond a plain Llama."""
        return frozenset(name for name, feature in FEATURES.items() if feature.is_in(self))

    def check_features(self, back_end: BackEnd) -> None:
        """Raise ConfigError, naming them, for features that a back end does not have."""
        known = [name for name, feature in FEATURES.items() if back_end in feature.back_ends]
        self.check_known(known, back_end)

    def check_known(self, known: Collection[str], by: str) -> None:
        """Raise ConfigError, naming them, for features that are not among the known."""
        if lacking := sorted(self.features.difference(known)):
            raise ConfigError(
                f"{self.architecture} needs {', '.join(lacking)}: not supported by {by}"
            )


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
    """Limits of one engine. Every queue is bounded; beyond a bound requests are refused."""

    max_running: int = 64  # sequences that hold KV blocks at once
    max_waiting: int = 1024  # requests queued for a place
    max_step_tokens: int = 512  # tokens computed in one step: the prefill chunk's upper bound
    max_gap_seconds: float = 0.03  # of a step with prompts that streams wait for; see `StepPrice`
    max_draft_tokens: int = 8  # of a stream in a step, see `speculation`; 0: none
    pin_share: float = PIN_SHARE  # of the pool's blocks, that a tenant may pin; see `pins`

    def __post_init__(self) -> None:
        _check_counts(self, "max_running", "max_waiting", "max_step_tokens")
        if not self.max_gap_seconds >= 0:
            raise ConfigError(f"max_gap_seconds must not be negative, got {self.max_gap_seconds}")
        if not 0 <= self.pin_share <= 1:
            raise ConfigError(f"pin_share must be from 0 to 1, got {self.pin_share}")
        if self.max_draft_tokens < 0:
            raise ConfigError(f"max_draft_tokens must not be negative, got {self.max_draft_tokens}")


def _check_counts(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(config, name)}")
