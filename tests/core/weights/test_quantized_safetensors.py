"""Quantised safetensors: every value as the libraries that write such files have it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from tests.core.random_models import random_weights, write_safetensors
from tests.core.reference_model import ReferenceModel, kl_divergence
from tests.core.runners.runner_suite import KINDS, teacher_forced
from torch import Tensor

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.models.quantization import Quantization, join
from skerry_core.models.weight_file import WeightFile
from skerry_core.runners.packing.packed import packed_bytes
from skerry_core.weights.files import map_file
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import FileTensor, WeightsError, dequantize

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


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_every_value_is_read_exactly(tmp_path: Path, kind: str) -> None:
    meanings = write(tmp_path, kind)
    ours = {"q_proj": "attn_q", "down_proj": "ffn_down", "gate_proj": "ffn_gate"}
    with WeightFile.open(tmp_path) as file:
        for name, meaning in meanings.items():
            _, _, layer, *_, module, _ = name.split(".")
            if module not in ours:
                continue
            tensor = file.tensors[f"blk.{layer}.{ours[module]}.weight"]
            assert tensor.format == KINDS_OF_FILES[kind][2]
            np.testing.assert_array_equal(dequantize(tensor), meaning.numpy(), err_msg=name)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_what_the_libraries_themselves_have_packed_is_read_as_they_read_it(method: str) -> None:
    """A matrix [64, 96] by AutoAWQ 0.2.5 (`WQLinear_GEMM.from_linear`) and by AutoGPTQ 0.7.1
    (`QuantLinear.pack`), and in float16 what each library's own code unpacks of it: they need CUDA
    or an old Torch, so their tensors are kept here."""
    file = Path(__file__).parents[1] / "data" / "packed_elsewhere.safetensors"
    nothing = re.compile(f"(?!{method}).*")
    tensors = read_safetensors(map_file(file), str(file), ignored=nothing, takes_raw=True)
    expected = dequantize(tensors.pop(f"{method}.weight"))
    joined = join(tensors, Quantization(method), str(file))
    assert list(joined) == [f"{method}.weight"]
    values = dequantize(joined[f"{method}.weight"])
    np.testing.assert_array_equal(values.astype(np.float16), expected)


def test_sizes_are_learnt_without_reading_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "AWQ")
    size = packed_bytes(tmp_path)
    nothing = property(lambda tensor: pytest.fail("read"))
    monkeypatch.setattr(FileTensor, "data", nothing)
    assert packed_bytes(tmp_path) == size


@pytest.mark.parametrize("kind", ["AWQ", "FP8 in blocks"])
def test_they_run(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 70).tolist()
    with WeightFile.open(tmp_path) as file:
        expected = ReferenceModel(file).logits(tokens)
    for back_end, most in (("numba", 0.01), ("torch", 1e-5), ("jax", 1e-5)):
        runner = KINDS[back_end].open(tmp_path, num_blocks=3, max_step_tokens=70, max_samples=70)
        logits = teacher_forced(runner, tokens, (70,), table=[0, 1, 2])
        runner.close()
        assert kl_divergence(expected, logits).max() < most, back_end


def test_codes_and_exponents_of_gpt_oss_are_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    from skerry_core.weights.checkpoint_blocks import mxfp4_rows

    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (3, 6, 2, 16), np.uint8)
    scales = rng.integers(100, 140, (3, 6, 2), np.uint8)
    rows = mxfp4_rows(blocks, scales).reshape(-1)
    told = dequantize(FileTensor("MXFP4", (3, 6, 64), rows))
    expected = convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    np.testing.assert_array_equal(told, expected.swapaxes(1, 2).numpy())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not"),
    "inputs in another order": (
        {"quant_method": "gptq", "bits": 4, "desc_act": True}, "desc_act True is not supported",
    ),
    "another order by groups": (
        compressed("pack-quantized", 4, "int", actorder="group"), "actorder 'group' is not",
    ),
    "three bits": ({"quant_method": "gptq", "bits": 3}, "bits 3 is not supported"),
    "eight bits": (compressed("pack-quantized", 8, "int"), "num_bits is 8"),
    "integers of 8 bits": (compressed("int-quantized", 8, "int"), "format is 'int-quantized'"),
    "another kernel": (
        {"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, case: str) -> None:
    section, message = REFUSED[case]
    write(tmp_path, "AWQ")
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"quantization_config": section}))
    with pytest.raises(WeightsError, match=message):
        WeightFile.open(tmp_path)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("scales", None, r"'.*q_proj\.scales' is missing"),
        ("qzeros", lambda t: t[:1], r"'.*q_proj\.qzeros' has shape \(1, 8\)"),
        ("qweight", lambda t: t.float(), r"'.*q_proj\.qweight' has format 'F32'"),
        ("scales", lambda t: t[:1].repeat(3, 1), "3 groups of 64 inputs are not whole"),
        ("bias", lambda t: torch.zeros(64, dtype=torch.int32), r"q_proj\.bias' has format 'I32'"),
        ("bias", lambda t: torch.full((64,), 1e-3), r"q_proj\.bias' has no place in a model"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, part: str, change: Callable[[Tensor], Tensor] | None, message: str
) -> None:
    write(tmp_path, "AWQ")
    path = tmp_path / "model.safetensors"
    tensors, name = load_file(path), f"model.layers.0.self_attn.q_proj.{part}"
    given = tensors.pop(name, torch.zeros(1))
    if change is not None:
        tensors[name] = change(given)
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=message):
        WeightFile.open(tmp_path)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (torch.arange(64).flip(0).int() // GROUP, r"g_idx' puts inputs in another order"),
        (torch.arange(32).int() // GROUP, r"g_idx' has shape \(32,\)"),
    ],
)
def test_another_order_that_is_not_stated_is_refused(
    tmp_path: Path, order: Tensor, message: str
) -> None:
    write(tmp_path, "GPTQ")
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"model.layers.1.self_attn.q_proj.g_idx": order}, path)
    with pytest.raises(WeightsError, match=message):
        WeightFile.open(tmp_path)


def test_a_scale_beyond_f16_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "compressed-tensors, scales in bfloat16")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.q_proj.weight_scale"][0] = 1e9
    save_file(tensors, path)
    with WeightFile.open(tmp_path) as file, pytest.raises(WeightsError, match="beyond 65504"):
        dequantize(file.tensors["blk.0.attn_q.weight"])
