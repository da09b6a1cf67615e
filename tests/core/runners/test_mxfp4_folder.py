"""A folder of gpt-oss as OpenAI publishes it: experts in MXFP4, two values in each byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS
from tests.core.runners.saved_family import TOKENS, save
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from skerry_core.models.weight_file import WeightFile


def with_packed_experts(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Give experts random codes; return the tensors of such a folder, and what they mean."""
    rng = np.random.default_rng(7)
    packed, meant = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = meant[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.from_numpy(rng.integers(0, 256, (*shape, 16), np.uint8))
        scales = torch.from_numpy(rng.integers(121, 124, shape, np.uint8))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert values.shape == tensor.shape
        meant[name] = values.contiguous()
    return packed, meant


@pytest.mark.parametrize(("kind", "most"), [("torch", 1e-8), ("numba", 0.02)])
def test_what_is_published_is_what_is_run(tmp_path: Path, kind: str, most: float) -> None:
    """The CPU's products are of 8-bit activations, which is all that it differs by."""
    save(FAMILIES["gpt_oss"], tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    packed, meant = with_packed_experts(load_file(weights))
    save_file(meant, weights, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    save_file(packed, weights)
    stated = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    config.write_text(json.dumps(stated))
    with WeightFile.open(tmp_path) as file:
        assert file.tensors["blk.0.ffn_gate_exps.weight"].format == "MXFP4"
    runner = KINDS[kind].open(tmp_path, num_blocks=3, max_step_tokens=150, max_samples=150)
    logits = teacher_forced(runner, TOKENS, (150,), table=[0, 1, 2])
    runner.close()
    assert kl_divergence(expected, logits).mean() < most
