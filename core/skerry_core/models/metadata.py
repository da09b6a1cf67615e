"""What a weight file says of its model, under Hugging Face's keys: config.json, or GGUF's pairs.

A file is not trusted: a value is given out in the type and range that the reader requests. Errors
name the file, and the key as the file spells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from skerry_core.exact_math import log_f64
from skerry_core.models.tensor_names import EMBEDDING, HEAD
from skerry_core.weights.tensors import FileTensor, WeightsError, dequantize

MAX_LAYERS = 1024  # each has its own tensors, so a real model is far below

_GGUF_KEYS = {  # each is prefixed by the architecture in the file
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "rotary_dim": "rope.dimension_count",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "window": "attention.sliding_window",  # of every layer: Hugging Face has no key for that
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
_GGUF_SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}


class CheckpointMetadata:
    """Typed access to untrusted key-value pairs."""

    def __init__(
        self, values: Mapping[str, Any], file: str, spelled: Mapping[str, str] | None = None
    ) -> None:
        """`spelled` has the file's own names of keys, where they are not Hugging Face's."""
        self._values = values
        self._spelled = spelled or {}
        self.file = file

    @property
    def is_gguf(self) -> bool:
        return bool(self._spelled)

    @property
    def keys(self) -> list[str]:
        return list(self._values)

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def with_defaults(self, values: Mapping[str, Any]) -> CheckpointMetadata:
        """Return the same pairs, and these where there is none of the key."""
        return CheckpointMetadata({**values, **self._values}, self.file, self._spelled)

    def says_none(self, key: str) -> bool:
        """Return whether the file has the key, and null for its value."""
        return key in self._values and self._values[key] is None

    def without(self, *keys: str) -> CheckpointMetadata:
        """Return the pairs but those of these keys."""
        left = {key: value for key, value in self._values.items() if key not in keys}
        return CheckpointMetadata(left, self.file, self._spelled)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, limit: int = 1 << 31
    ) -> int:
        value = self._get(key, default)
        if type(value) is not int or not least <= value < limit:
            raise self.bad(key)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive, finite number."""
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

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key)
        return value

    def sequence(self, key: str) -> list[Any]:
        """Return a list, whose items are not checked."""
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self.bad(key)
        return value

    def section(self, *keys: str) -> CheckpointMetadata:
        """Return the pairs under the first of these keys that is there; none, if none is."""
        key = next(filter(self._values.get, keys), None)
        if key is None:
            return CheckpointMetadata({}, self.file)
        value = self._values[key]
        if not isinstance(value, dict):
            raise self.bad(key)
        return CheckpointMetadata(value, self.file)

    def refuse(self, key: str, *, unless: object = None) -> None:
        """Raise WeightsError where the file has by this key what is not supported."""
        value = self._values.get(key)
        if value is not None and value is not False and value != unless:
            raise WeightsError(f"{self.file}: {self._name(key)} {value!r} is not supported")

    def bad(self, key: str) -> WeightsError:
        return WeightsError(f"{self.file}: {self._name(key)} is {self._values.get(key)!r}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None and default is None:
            raise WeightsError(f"{self.file}: {self._name(key)} is missing")
        return default if value is None else value

    def _name(self, key: str) -> str:
        return self._spelled.get(key, key)


def gguf_metadata(
    architecture: str, pairs: Mapping[str, Any], tensors: Mapping[str, FileTensor], file: str
) -> CheckpointMetadata:
    """Read what a GGUF file says of a model, in part by which tensors it has. Raises WeightsError.

    `architecture` prefixes its keys.
    """
    spelled = {ours: f"{architecture}.{theirs}" for ours, theirs in _GGUF_KEYS.items()}
    values = {ours: pairs[name] for ours, name in spelled.items() if name in pairs}
    embedding = tensors.get(EMBEDDING)
    if embedding is None:
        raise WeightsError(f"{file}: tensor {EMBEDDING!r} is missing")
    values["vocab_size"] = embedding.shape[0]
    values["tie_word_embeddings"] = HEAD not in tensors
    values["qkv_bias"] = "blk.0.attn_q.bias" in tensors
    theta = CheckpointMetadata(values, file, spelled).number("rope_theta", 10_000.0)
    values["rope_scaling"] = _rope_scaling(architecture, pairs, tensors, theta, file)
    metadata = CheckpointMetadata(values, file, spelled)
    metadata.number("rms_norm_eps")  # must be there: families' defaults are config.json's
    return metadata


def _rope_scaling(
    architecture: str,
    pairs: Mapping[str, Any],
    tensors: Mapping[str, FileTensor],
    theta: float,
    file: str,
) -> dict[str, Any] | None:
    """Return rotary scaling as config.json has it. Lists of divisors are tensors in GGUF."""
    if (divisors := tensors.get("rope_freqs.weight")) is not None:
        return _llama3_scaling(divisors, theta, file)
    prefix = f"{architecture}.rope.scaling."
    stated = _GGUF_SCALING.items()
    section = {ours: pairs[prefix + key] for ours, key in stated if prefix + key in pairs}
    amplitude = pairs.get(f"{prefix}attn_factor")
    if amplitude is not None and (type(amplitude) is not float or not amplitude > 0):
        raise WeightsError(f"{file}: {prefix}attn_factor is {amplitude!r}")
    if "rope_factors_long.weight" in tensors and "rope_factors_short.weight" in tensors:
        for length in ("long", "short"):
            values = dequantize(tensors[f"rope_factors_{length}.weight"]).reshape(-1)
            section[f"{length}_factor"] = values.tolist()
        return section | {"rope_type": "longrope", "attention_factor": amplitude}
    kind = pairs.get(f"{prefix}type", "none")
    if kind == "none":
        return None
    if kind == "yarn" and amplitude is not None:  # of YaRN's own
        factor = CheckpointMetadata(section, file).number("factor")
        amplitude *= 0.1 * float(log_f64(max(factor, 1.0))) + 1
    return section | {"rope_type": kind, "attention_factor": amplitude}


def _llama3_scaling(factors: FileTensor, theta: float, file: str) -> dict[str, str | float | int]:
    """Return Llama 3's scaling, found in the divisors of each frequency that GGUF stores instead.

    Of its four parameters GGUF keeps none. All released models share three of them, and the largest
    divisor is the fourth; divisors that these do not reproduce are refused.
    """
    given = dequantize(factors).reshape(-1)
    factor = float(given.max())
    wavelength = 2 * np.pi * theta ** (np.arange(len(given)) / len(given))
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    if not np.allclose(given, 1.0 / ((1.0 - smooth) / factor + smooth), rtol=1e-3):
        raise WeightsError(f"{file}: tensor 'rope_freqs.weight' is not Llama 3's rotary scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
