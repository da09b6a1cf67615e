"""Files of random weights in public shapes, which `bench.engine --shape` writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.subjects.shaped_files import SHAPES, q4_k_m, write_shaped
from tests.core.open_runners import open_on_torch
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import random_tokens

from skerry_core.config import ModelConfig, RopeConfig
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import dequantize


def narrow(name: str) -> ModelConfig:
    """A small model of the same kind, 256 wide as K formats want it."""
    config = SHAPES[name].config
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    layers = tuple(
        replace(each, rope=replace(rope, multipliers=rope.multipliers[:32]))
        for each in config.layers[:2]
        if (rope := each.rope) is not None
    )
    if config.architecture == "llama":  # whose scaling is read from divisors of its frequencies
        layers = tuple(replace(each, rope=RopeConfig(theta=5e5)) for each in layers)
    experts = None if config.experts is None else replace(config.experts, width=256)
    return replace(
        config, layers=layers, hidden_size=256, intermediate_size=256, vocab_size=512,
        max_context=512, experts=experts, **heads,
    )  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_says_what_its_shape_is(tmp_path: Path, name: str) -> None:
    config = narrow(name)
    path = tmp_path / "m.gguf"
    write_shaped(path, config, SHAPES[name].format_of)
    runner = open_on_torch(path, num_blocks=2, max_samples=64, threads=1)
    read = runner.model
    assert replace(read, layers=config.layers, rms_norm_eps=config.rms_norm_eps) == replace(
        config, max_context=read.max_context
    )
    assert [(each.window, each.has_experts) for each in read.layers] == [
        (each.window, each.has_experts) for each in config.layers
    ]
    with WeightFile.open(path) as file:
        values = dequantize(file.tensors["blk.0.attn_q.weight"])
    assert abs(values.mean()) < 0.01
    assert np.std(values) == pytest.approx(256**-0.5, rel=0.05)
    logits = teacher_forced(runner, random_tokens(60), (60,), [1])
    assert 0.3 < np.std(logits) < 3  # states stay sane


def test_formats_are_those_of_q4_k_m() -> None:
    """As llama.cpp's quantiser chose them for Llama-3.2-1B's published files."""
    config = SHAPES["llama-3.2-1b"].config
    wide = [i for i in range(16) if q4_k_m(f"blk.{i}.ffn_down.weight", config) == "Q6_K"]
    assert wide == [0, 1, 4, 7, 10, 13, 14, 15]
    assert q4_k_m("blk.0.attn_q.weight", config) == "Q4_K"
    assert q4_k_m("token_embd.weight", config) == "Q6_K"  # it is the output, too
    assert q4_k_m("token_embd.weight", SHAPES["llama-3.1-8b"].config) == "Q4_K"
