"""Shapes of published models, and random weights of them: what benchmarks run."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from bench.device.random_weights import random_weights
from bench.subjects.public_shapes import PUBLIC_SHAPES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import random_tokens

from skerry_core.models.tensor_names import expected_shapes
from skerry_core.runners.torch.torch_runner import TorchRunner


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gpt-oss-20b", 20_914_757_184),
    ],
)
def test_they_have_as_many_parameters_as_was_published(name: str, parameters: int) -> None:
    assert sum(map(prod, expected_shapes(PUBLIC_SHAPES[name]).values())) == parameters


@pytest.mark.parametrize(
    "name", [name for name, shape in PUBLIC_SHAPES.items() if shape.experts is None]
)
def test_random_weights_make_a_model_that_runs(name: str) -> None:
    """A narrow one of the same kind: biases, a head of its own and rotary scaling are kept."""
    shape = PUBLIC_SHAPES[name]
    layers = tuple(
        replace(layer, rope=replace(rope, multipliers=rope.multipliers[:: shape.head_dim // 16]))
        for layer in shape.layers[:2]
        if (rope := layer.rope) is not None
    )
    config = replace(
        shape, layers=layers, hidden_size=64, intermediate_size=96, num_heads=4,
        num_kv_heads=2, head_dim=16, vocab_size=131, max_context=128,
    )  # fmt: skip
    first, again = (random_weights(config, torch.device("cpu"), torch.float32) for _ in range(2))
    assert torch.equal(first.layers[1].down, again.layers[1].down)  # type: ignore[arg-type]
    assert (first.head is first.embedding) == config.tied_embeddings
    assert (first.layers[0].qkv_bias is not None) == config.attention_bias
    runner = TorchRunner(config, first, num_blocks=2, max_samples=64, threads=1)
    logits = teacher_forced(runner, random_tokens(60), (59, 1), [1])
    assert 0.5 < np.std(logits) < 2  # as large as what goes in
