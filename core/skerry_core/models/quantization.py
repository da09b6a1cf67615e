"""Quantised safetensors: what config.json may say of them.

Supported are FP8 in blocks, channels and tensors (DeepSeek's `fp8` and compressed-tensors), 4-bit
integers of AWQ, GPTQ and compressed-tensors, gpt-oss's MXFP4, and our lossless BF12. GPTQ's
`desc_act`, and what compressed-tensors calls actorder `group`, put inputs in another order, and are
refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.weights.bf12_files import METHOD, VERSION
from skerry_core.weights.tensors import WeightsError

METHODS = ("awq", METHOD, "compressed-tensors", "fp8", "gptq", "mxfp4")
_PACKINGS = ("float-quantized", "naive-quantized", "pack-quantized")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's matrices are quantised."""

    method: str  # of METHODS
    block: tuple[int, int] = (128, 128)  # outputs and inputs that share a scale, of FP8 in blocks
    zeros_less_one: bool = True  # of GPTQ


def read_quantization(metadata: CheckpointMetadata) -> Quantization | None:
    """Return what `quantization_config` says; None without one. Raises WeightsError for what is
    not supported, by its name."""
    if not metadata.has("quantization_config"):
        return None
    section = metadata.section("quantization_config")
    method = section.text("quant_method")
    if method not in METHODS:
        raise WeightsError(
            f"{metadata.file}: quant_method {method!r} is not supported, only {', '.join(METHODS)}"
        )
    if method in ("awq", "gptq"):
        section.integer("bits")
        section.refuse("bits", unless=4)
        section.refuse("desc_act")
    if method == "awq" and section.text("version", "gemm").lower() != "gemm":
        raise section.bad("version")
    if method == "gptq":
        form = section.text("checkpoint_format", "gptq")
        if form not in ("gptq", "gptq_v2"):
            raise section.bad("checkpoint_format")
        return Quantization(method, zeros_less_one=form == "gptq")
    if method == METHOD:
        section.integer("version")
        section.refuse("version", unless=VERSION)
    if method == "fp8":
        section.refuse("fmt", unless="e4m3")
        return Quantization(method, _block(section, "weight_block_size"))
    if method == "compressed-tensors":
        return Quantization(method, _compressed(section))
    return Quantization(method)


def _compressed(section: CheckpointMetadata) -> tuple[int, int]:
    """Check what compressed-tensors says of its groups of modules; return the block of FP8."""
    if section.text("format") not in _PACKINGS:
        raise section.bad("format")
    block = (128, 128)
    groups = section.section("config_groups")
    for name in groups.keys:
        weights = groups.section(name).section("weights")
        if (weights.integer("num_bits"), weights.text("type")) not in ((4, "int"), (8, "float")):
            raise weights.bad("num_bits")
        if weights.has("actorder") and weights.text("actorder") not in ("static", "weight"):
            weights.refuse("actorder")
        block = _block(weights, "block_structure")
    return block


def _block(section: CheckpointMetadata, key: str) -> tuple[int, int]:
    if not section.has(key):
        return 128, 128
    sizes = section.sequence(key)
    if len(sizes) != 2 or any(type(size) is not int or size < 1 for size in sizes):
        raise section.bad(key)
    return sizes[0], sizes[1]
