"""Quantised safetensors: every value as the libraries that write such files have it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.core.reference_model import ReferenceModel, kl_divergence
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS
from tests.core.weights.quantized_files import CONFIG, KINDS_OF_FILES, write

from skerry_core.models.checkpoint_joining import join
from skerry_core.models.quantization import Quantization
from skerry_core.models.weight_file import WeightFile
from skerry_core.runners.packing.packed import packed_bytes
from skerry_core.weights.files import map_file
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import FileTensor, dequantize


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
