"""A model's configuration out of what its weight file says: GGUF metadata or Hugging Face's JSON.

What a file asks for and the engine does not do is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from skerry_core.config import ConfigError, ModelConfig, RopeScaling
from skerry_core.weights.tensors import Tensor, WeightsError, dequantize

_GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral is "llama" there
_JSON_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_MAX_LAYERS = 1024  # of a file we believe; each has its own tensors, so a real one is far below


class _Fields:
    """Typed access to untrusted key-value pairs; errors name the file and the key."""

    def __init__(self, values: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self._values = values
        self._file = file
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, limit: int = 1 << 31
    ) -> int:
        value = self._get(key, default)
        if type(value) is not int or not least <= value < limit:
            raise self.bad(key)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(key)
        if not 0 < value < float("inf"):
            raise self.bad(key)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.bad(key)
        return value

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in allowed:
            raise WeightsError(f"{self._file}: {key} {value!r} is not supported, only {allowed}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key)
        return value

    def bad(self, key: str) -> WeightsError:
        name = self._prefix + key
        return WeightsError(f"{self._file}: {name} is {self._values.get(name)!r}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None and default is None:
            raise WeightsError(f"{self._file}: {self._prefix + key} is missing")
        return default if value is None else value


def config_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str
) -> ModelConfig:
    """The configuration of a GGUF model. Raises WeightsError naming `file` and the key."""
    architecture = _Fields(metadata, file).one_of("general.architecture", _GGUF_ARCHITECTURES)
    fields = _Fields(metadata, file, architecture + ".")
    scaling = fields.text("rope.scaling.type", "none")
    if scaling != "none":
        raise WeightsError(f"{file}: rotary scaling {scaling!r} is not supported")
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if fields.integer(key, head_dim) != head_dim:
            raise fields.bad(key)
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(f"{file}: tensor 'token_embd.weight' is missing")
    theta = fields.number("rope.freq_base", 10_000.0)
    return _config(
        file,
        architecture=architecture,
        num_layers=fields.integer("block_count", limit=_MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        max_context=fields.integer("context_length"),
        rope_theta=theta,
        rope_scaling=_scaling_from_factors(tensors.get("rope_freqs.weight"), theta, file),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tied_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        sliding_window=(
            fields.integer("attention.sliding_window")
            if fields.has("attention.sliding_window")
            else None
        ),
    )


def config_from_json(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str
) -> ModelConfig:
    """The configuration of a Hugging Face `config.json`; tensors under their GGUF names.

    Raises WeightsError naming `file` and the key.
    """
    fields = _Fields(values, file)
    architecture = fields.one_of("model_type", _JSON_ARCHITECTURES)
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.bad("hidden_act")
    if fields.has("quantization_config"):
        raise WeightsError(f"{file}: quantization_config is not supported")
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", limit=_MAX_LAYERS)
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise WeightsError(f"{file}: rotary parameters are {rope!r}")
    if any(each.get("partial_rotary_factor") not in (None, 1.0) for each in (values, rope)):
        raise WeightsError(f"{file}: partial_rotary_factor is not supported")
    theta = _Fields(rope, file).number("rope_theta", fields.number("rope_theta", 10_000.0))
    return _config(
        file,
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", hidden_size // num_heads),
        vocab_size=fields.integer("vocab_size"),
        max_context=fields.integer("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=_scaling_from_json(rope, file),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias="blk.0.attn_q.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        sliding_window=_window_from_json(values, architecture, num_layers, file),
    )


def _config(file: str, **values: Any) -> ModelConfig:
    try:
        return ModelConfig(**values)
    except ConfigError as error:
        raise WeightsError(f"{file}: {error}") from None


def _window_from_json(
    values: Mapping[str, Any], architecture: str, num_layers: int, file: str
) -> int | None:
    """Tokens that each layer sees, None for all of them. A window in some layers is refused."""
    fields = _Fields(values, file)
    if architecture == "llama" or not fields.has("sliding_window"):
        return None
    window = fields.integer("sliding_window")
    if architecture == "mistral":
        return window
    if not fields.flag("use_sliding_window", False):
        return None
    first = fields.integer("max_window_layers", 28, least=0)  # layers below it see everything
    kinds = ["full_attention" if i < first else "sliding_attention" for i in range(num_layers)]
    kinds = values.get("layer_types") or kinds
    if kinds == ["sliding_attention"] * num_layers:
        return window
    if kinds == ["full_attention"] * num_layers:
        return None
    raise WeightsError(
        f"{file}: a sliding window in some layers only is not supported: max_window_layers or "
        "layer_types asks for it"
    )


def _scaling_from_json(rope: Mapping[str, Any], file: str) -> RopeScaling | None:
    fields = _Fields(rope, file)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise WeightsError(f"{file}: rotary scaling {kind!r} is not supported")
    return RopeScaling(
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_max_position=fields.integer("original_max_position_embeddings"),
    )


def _scaling_from_factors(factors: Tensor | None, theta: float, file: str) -> RopeScaling | None:
    """Llama 3's scaling from the divisors of each frequency, which is how GGUF stores it.

    Of its four parameters GGUF keeps none. All released models share three of them, and the largest
    divisor is the fourth; divisors that these do not reproduce are refused.
    """
    if factors is None:
        return None
    given = dequantize(factors)
    scaling = RopeScaling(
        factor=float(given.max()),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=8192,
    )
    if given.ndim != 1 or not np.allclose(given, _divisors(scaling, theta, len(given)), rtol=1e-3):
        raise WeightsError(f"{file}: tensor 'rope_freqs.weight' is not Llama 3's rotary scaling")
    return scaling


def _divisors(scaling: RopeScaling, theta: float, count: int) -> np.ndarray[Any, Any]:
    """f64[count]: what Llama 3 divides each rotary frequency by."""
    wavelength = 2 * np.pi * theta ** (np.arange(count) / count)
    turns = scaling.original_max_position / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)
