"""Fused matrices and experts in folders that others have quantised, against transformers on what
the numbers mean."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS
from tests.core.runners.saved_family import TOKENS, save
from tests.core.weights.quantized_files import KINDS_OF_FILES
from torch import Tensor
from transformers import AutoModelForCausalLM

_QUANTIZED = re.compile(r"proj\.weight|experts\.\d+\.w[123]\.weight")


def quantize(folder: Path, kind: str) -> dict[str, Tensor]:
    """Quantise the matrices of a saved model's layers; return what its tensors mean."""
    section, quantized, _ = KINDS_OF_FILES[kind]
    tensors, meant = dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in load_file(folder / "model.safetensors").items():
        if not _QUANTIZED.search(name):
            tensors[name] = meant[name] = weight
            continue
        parts, meaning = quantized(weight)
        module, meant[name] = name.removesuffix(".weight"), meaning.contiguous()
        tensors |= {f"{module}.{part}": each.contiguous() for part, each in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    config = folder / "config.json"
    stated = json.loads(config.read_text()) | {"quantization_config": section}
    config.write_text(json.dumps(stated))
    return meant


@pytest.mark.parametrize("kind", ["AWQ", "GPTQ", "compressed-tensors", "FP8 in blocks"])
@pytest.mark.parametrize("family", ["phi3", "mixtral", "qwen3_moe"])
def test_what_was_quantised_is_what_is_run(tmp_path: Path, family: str, kind: str) -> None:
    """The CPU's products are of 8-bit activations, which is all that it differs by."""
    whole, folder = tmp_path / "whole", tmp_path / "quantised"
    save(FAMILIES[family], whole)
    save(FAMILIES[family], folder)
    save_file(quantize(folder, kind), whole / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(
        whole, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    bounds = {"torch": 1e-8, "numba": 0.02}
    if family == "phi3":  # JAX has no experts
        bounds["jax"] = 1e-8
    for back_end, most in bounds.items():
        runner = KINDS[back_end].open(folder, num_blocks=3, max_step_tokens=150, max_samples=150)
        logits = teacher_forced(runner, TOKENS, (150,), table=[0, 1, 2])
        runner.close()
        assert kl_divergence(expected, logits).mean() < most, back_end
