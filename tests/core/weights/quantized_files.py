"""Quantised safetensors as the libraries that write such files pack them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from tests.core.random_models import random_weights, write_safetensors
from torch import Tensor

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig

CONFIG = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(rope=RopeConfig()),) * 2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=80,
    max_context=512,
    tied_embeddings=False,
)
GROUP = 32
Parts = dict[str, Tensor]
Made = tuple[Parts, Tensor]  # what a file has of a matrix, and what it means


def quants(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [outputs, inputs] from 0 to 15, zero points from 1 to 15 and f16 scales [outputs,
    groups] of a matrix."""
    groups = weight.unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / 14).half()
    zeros = (1 - low / scales.float()).round().clamp(1, 15).int()
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15).int()
    return codes.flatten(1), zeros, scales


def meant(codes: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    by_group = codes.unflatten(1, (-1, GROUP)) - zeros[..., None]
    return (by_group * scales.float()[..., None]).flatten(1)


def words(codes: Tensor, order: list[int]) -> Tensor:
    """Words of eight columns each: nibble i has column `order[i]` of them."""
    columns = codes.to(torch.int64).unflatten(1, (-1, 8))
    whole = sum(columns[..., column] << (4 * i) for i, column in enumerate(order))
    assert isinstance(whole, Tensor)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).int()


IN_TURN, OF_AWQ = [0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 4, 6, 1, 3, 5, 7]


def awq(weight: Tensor) -> Made:
    """As AutoAWQ's `WQLinear_GEMM` packs: [inputs, outputs], in the order of its kernel."""
    codes, zeros, scales = quants(weight)
    parts = {
        "qweight": words(codes.T, OF_AWQ),
        "qzeros": words(zeros.T, OF_AWQ),
        "scales": scales.T,
    }
    return parts, meant(codes, zeros, scales)


def gptq(weight: Tensor, less_one: int = 1) -> Made:
    """As AutoGPTQ's `QuantLinear` packs: eight inputs in a word, zero points less one."""
    codes, zeros, scales = quants(weight)
    parts = {
        "qweight": words(codes, IN_TURN).T,
        "qzeros": words((zeros - less_one).T, IN_TURN),
        "scales": scales.T,
        "g_idx": torch.arange(weight.shape[1]).int() // GROUP,
        "bias": torch.zeros(len(weight), dtype=torch.float16),  # a Llama's too
    }
    return parts, meant(codes, zeros, scales)


def packed(weight: Tensor, *, symmetric: bool = False, dtype: torch.dtype = torch.float16) -> Made:
    """As compressed-tensors packs, by its own functions."""
    codes, zeros, scales = quants(weight)
    scales = scales.to(dtype)
    zeros = torch.full_like(zeros, 8) if symmetric else zeros
    parts = {
        "weight_packed": pack_to_int32((codes - 8).to(torch.int8), 4),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        points = (zeros - 8).to(torch.int8)
        parts["weight_zero_point"] = pack_to_int32(points, 4, packed_dim=0)
    return parts, meant(codes, zeros, scales)


def fp8(weight: Tensor, scales: Tensor, name: str = "weight_scale") -> Made:
    """With a scale for each row, or all of it."""
    values = (weight / scales).to(torch.float8_e4m3fn)
    parts = {"weight": values, name: scales, "input_scale": torch.ones(1)}
    return parts, values.float() * scales


def fp8_blocks(weight: Tensor) -> Made:
    """In blocks of 40 outputs and 64 inputs: the last ones are not whole."""
    high, wide = -(-weight.shape[0] // 40), -(-weight.shape[1] // 64)
    scales = torch.rand(high, wide) / 448 + 1e-3
    each = scales.repeat_interleave(40, 0)[: len(weight)]
    each = each.repeat_interleave(64, 1)[:, : weight.shape[1]]
    values = (weight / each).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scales}, values.float() * each


def compressed(form: str, bits: int, kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind} | weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


INTEGERS = compressed("pack-quantized", 4, "int", group_size=GROUP, actorder="weight")
FLOATS = compressed("float-quantized", 8, "float", strategy="channel")
KINDS_OF_FILES: dict[str, tuple[dict[str, Any], Callable[[Tensor], Made], str]] = {
    "AWQ": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, "UINT4"),
    "GPTQ": ({"quant_method": "gptq", "bits": 4, "desc_act": False}, gptq, "UINT4"),
    "GPTQ, second form": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, less_one=0),
        "UINT4",
    ),
    "compressed-tensors": (INTEGERS, packed, "UINT4"),
    "compressed-tensors, symmetric": (
        INTEGERS, lambda weight: packed(weight, symmetric=True), "Q4_0",
    ),
    "compressed-tensors, scales in bfloat16": (
        INTEGERS, lambda weight: packed(weight, dtype=torch.bfloat16), "UINT4",
    ),
    "FP8, a scale for each output": (
        FLOATS, lambda weight: fp8(weight, weight.abs().amax(1, keepdim=True) / 448), "FP8",
    ),
    "FP8, one scale": (FLOATS, lambda weight: fp8(weight, torch.tensor([0.01])), "FP8"),
    "FP8 in blocks": (
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [40, 64]}, fp8_blocks, "FP8",
    ),
}  # fmt: skip


def write(folder: Path, kind: str, config: ModelConfig = CONFIG) -> dict[str, Tensor]:
    """Write a model whose layers' matrices are quantised; return what they mean, by file names."""
    section, quantize, _ = KINDS_OF_FILES[kind]
    path = write_safetensors(folder, config, random_weights(config), quantization_config=section)
    tensors, meanings = dict[str, Tensor](), dict[str, Tensor]()
    torch.manual_seed(3)
    for name, weight in load_file(path).items():
        if not name.endswith("proj.weight"):
            tensors[name] = weight
            continue
        parts, meanings[name] = quantize(weight)
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": each.contiguous() for part, each in parts.items()}
    save_file(tensors, path)
    return meanings
