"""Rotary embeddings as files describe them: frequencies, and how a longer context scales them.

A `RopeConfig` has the outcome, a factor for each frequency, so back ends know no kind of scaling.
Logarithms and powers are `exact_math`'s: a table of angles has the same bits on every CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import RopeConfig
from skerry_core.exact_math import exp_f64, log_f64
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.weights.tensors import WeightsError

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Rotary:
    """What a kind of scaling is computed from."""

    section: CheckpointMetadata  # of `rope_parameters` or `rope_scaling`
    model: CheckpointMetadata  # what is around it
    theta: float
    frequencies: Float64  # radians per position of each pair of dimensions

    @property
    def original_context(self) -> int:
        """Return tokens of the context that the model was first trained with."""
        key = "original_max_position_embeddings"
        for metadata in (self.section, self.model):
            if metadata.has(key):
                return metadata.integer(key)
        return self.max_context

    @property
    def max_context(self) -> int:
        return self.model.integer("max_position_embeddings")


def read_rope(
    metadata: CheckpointMetadata,
    rotary_dim: int,
    *,
    section: CheckpointMetadata | None = None,
    truncates: bool = True,
) -> RopeConfig:
    """Read rotary embeddings of `rotary_dim` dimensions, in either of Hugging Face's spellings.

    `section` has a layer's own, where layers differ. `truncates` is what YaRN does where a file
    does not say. Raises WeightsError for a kind that is not supported.
    """
    if section is None:
        section = rope_section(metadata)
    theta = section.number("rope_theta", metadata.number("rope_theta", 10_000.0))
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return RopeConfig(theta=theta)
    count = rotary_dim // 2
    frequencies = exp_f64(-(np.arange(count) / count) * log_f64(theta))
    rotary = _Rotary(section, metadata, theta, frequencies)
    if kind == "yarn":
        return _yarn(rotary, truncates=truncates)
    if kind not in _KINDS:
        raise WeightsError(f"{metadata.file}: rotary scaling {kind!r} is not supported")
    return _KINDS[kind](rotary)


def rope_section(metadata: CheckpointMetadata) -> CheckpointMetadata:
    return metadata.section("rope_parameters", "rope_scaling")


def scaled_context(metadata: CheckpointMetadata) -> int:
    """Return the tokens that a model is served with: YaRN's factor may be stated alone."""
    stated = metadata.integer("max_position_embeddings")
    section = rope_section(metadata)
    key = "original_max_position_embeddings"
    if section.text("rope_type", section.text("type", "default")) != "yarn" or not section.has(key):
        return stated
    return max(stated, int(section.integer(key) * section.number("factor")))


def _scaled(rotary: _Rotary, multipliers: Float64, amplitude: float = 1.0) -> RopeConfig:
    factors = tuple(float(each) for each in multipliers)
    return RopeConfig(theta=rotary.theta, multipliers=factors, amplitude=amplitude)


def _linear(rotary: _Rotary) -> RopeConfig:
    """Read linear interpolation (Chen et al., 2023)."""
    return _scaled(rotary, np.full_like(rotary.frequencies, 1 / rotary.section.number("factor")))


def _llama3(rotary: _Rotary) -> RopeConfig:
    """Divide long waves by `factor`, keep short ones, with a ramp between (Llama 3.1)."""
    section = rotary.section
    factor, low = section.number("factor"), section.number("low_freq_factor")
    high = section.number("high_freq_factor")
    context = section.integer("original_max_position_embeddings")
    turns = context * rotary.frequencies / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return _scaled(rotary, keep + (1 - keep) / factor)


def _yarn(rotary: _Rotary, *, truncates: bool) -> RopeConfig:
    """Read YaRN (Peng et al., 2023): as Llama 3 does, with the ramp over frequencies' numbers."""
    section, count = rotary.section, len(rotary.frequencies)
    for key in ("mscale", "mscale_all_dim"):  # DeepSeek's, which scale attention too
        section.refuse(key)
    factor = section.number("factor")

    def number_of(turns: float) -> float:
        """Return which frequency turns so often in the original context."""
        ratio = float(log_f64(rotary.original_context / (turns * 2 * math.pi)))
        return count * ratio / float(log_f64(rotary.theta))

    low = number_of(section.number("beta_fast", 32.0))
    high = number_of(section.number("beta_slow", 1.0))
    if section.flag("truncate", truncates):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * count - 1)
    ramp = np.clip((np.arange(count) - low) / ((high - low) or 0.001), 0.0, 1.0)
    amplitude = 1.0 if factor <= 1 else 0.1 * float(log_f64(factor)) + 1
    return _scaled(
        rotary, (1 - ramp) + ramp / factor, section.number("attention_factor", amplitude)
    )


def _longrope(rotary: _Rotary) -> RopeConfig:
    """Read LongRoPE (Ding et al., 2024), which has a list of divisors for short contexts, and one
    for long ones.

    Which of them is decided once, by the context that the model is served with: what a cached key
    is must not depend on the length of the sequence that it is found by.
    """
    section, original = rotary.section, rotary.original_context
    is_long = rotary.max_context > original
    key = "long_factor" if is_long else "short_factor"
    divisors = section.sequence(key)
    if len(divisors) != len(rotary.frequencies) or not all(_is_positive(d) for d in divisors):
        raise section.bad(key)
    factor = section.number("factor", rotary.max_context / original)
    amplitude = 1.0
    if factor > 1:
        amplitude = math.sqrt(1 + float(log_f64(factor)) / float(log_f64(original)))
    return _scaled(
        rotary, 1 / np.array(divisors, np.float64), section.number("attention_factor", amplitude)
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")


_KINDS: dict[str, Callable[[_Rotary], RopeConfig]] = {
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
}
