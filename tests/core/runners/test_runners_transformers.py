"""The Torch and JAX runners against transformers: logits in chunks, greedy tokens over cached
prefixes, and a stream that one runner begins and another goes on with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench.subjects.requests import Request, SamplingParams
from tests.core.random_models import random_weights, write_safetensors
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS, MODELS, answers_of, engine_over, random_tokens
from transformers import AutoModelForCausalLM

from skerry_core.batch import Float32
from skerry_core.runner import ModelRunner

NAMES, ATOL, MAX_TOKENS = tuple(MODELS), 3e-5, 6
RUNNERS = [
    *(kind for kind in KINDS if kind.startswith("torch")),
    pytest.param("jax", marks=pytest.mark.slow),  # compiles for each shape
]


@dataclass
class Peer:
    """A model of transformers, and the folder that it was loaded from."""

    weights: Path
    model: Any

    def logits(self, tokens: list[int]) -> Float32:
        with torch.inference_mode():
            logits: Float32 = self.model(torch.tensor([tokens])).logits[0].numpy()
        return logits

    def greedy(self, tokens: list[int]) -> list[int]:
        tokens = list(tokens)
        for _ in range(MAX_TOKENS):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[-MAX_TOKENS:]


@pytest.fixture(scope="module", params=NAMES)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    config = replace(MODELS[request.param], num_heads=4)  # transformers wants it to divide 64
    folder = tmp_path_factory.mktemp(request.param)
    weights = write_safetensors(folder, config, random_weights(config, seed=3), pad_token_id=0)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return Peer(weights, model)


def open_runner(peer: Peer, kind: str) -> ModelRunner:
    return KINDS[kind].open(peer.weights, num_blocks=12, max_step_tokens=64, max_samples=64)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_runner_is_transformers_in_chunks_over_prefixes_and_after_a_hand_over(
    peer: Peer, kind: str
) -> None:
    runner, other, tokens = open_runner(peer, kind), open_runner(peer, kind), random_tokens(120)
    expected = peer.logits(tokens)
    logits = teacher_forced(runner, tokens, (64, 33, 1, 22), table=[4, 2])
    np.testing.assert_allclose(logits, expected, rtol=0, atol=ATOL)

    for there, here in ((7, 4), (1, 2)):
        other.admit_block(there, runner.export_block(here))
    # The last 22 tokens are computed again, from what was handed over.
    again = np.concatenate(
        [logits[:98], teacher_forced(other, tokens[98:], (21, 1), table=[7, 1], start=98)]
    )
    np.testing.assert_allclose(again, expected, rtol=0, atol=ATOL)

    engine = engine_over(runner, max_step_tokens=64)
    prompts = [tokens[:100], [*tokens[:70], *random_tokens(9, seed=1)], random_tokens(3, seed=2)]
    requests = [
        Request(id=str(i), prompt_ids=tuple(p), sampling=SamplingParams(max_tokens=MAX_TOKENS))
        for i, p in enumerate(prompts)
    ]
    wanted = {str(i): peer.greedy(prompt) for i, prompt in enumerate(prompts)}
    for _ in range(2):  # the second time over blocks of the first
        answers = answers_of(engine, requests)
        assert {name: list(answer.token_ids) for name, answer in answers.items()} == wanted
    assert engine.statistics().cache_hit_tokens > 0
    runner.close()
    other.close()
