"""Quantised safetensors that are refused by name: kinds, parts, orders, scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.core.weights.quantized_files import GROUP, compressed, write
from torch import Tensor

from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import WeightsError, dequantize

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
