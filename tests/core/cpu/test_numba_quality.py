"""What quantised arithmetic costs: the CPU engine against fp32 over the same dequantised weights.

Teacher-forced on the engine's own greedy output, which is where an answer would go astray.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.core.cpu.numba_steps import Row, logits_of
from tests.core.cpu.test_numba_exactness import CACHE
from tests.core.reference_model import ReferenceModel
from tokenizers import Tokenizer

from skerry_core.batch import Float32
from skerry_core.models.weight_file import WeightFile
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

PROMPTS: list[str] = json.loads((Path(__file__).parents[1] / "data/prompts.json").read_text())
OUTPUT = 64  # tokens
MAX_KL = 0.006  # nats, mean over all predicted tokens
CLEAR = 0.5  # a gap of fp32 logits beyond which both must choose alike


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_our_own_answers_against_fp32(default_model: ModelFiles, count: int) -> None:
    tokenizer = Tokenizer.from_file(str(default_model.tokenizer))
    prompts: list[list[int]] = [tokenizer.encode(prompt).ids for prompt in PROMPTS[:count]]
    answers, ours = greedy(default_model.weights, prompts)
    divergences: list[float] = []
    with WeightFile.open(default_model.weights) as file:
        reference = ReferenceModel(file)
    for prompt, answer, mine in zip(prompts, answers, ours, strict=True):
        theirs = reference.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        ordered = np.sort(theirs, axis=1)
        is_clear = ordered[:, -1] - ordered[:, -2] > CLEAR
        assert (mine.argmax(1) == theirs.argmax(1))[is_clear].all()
        divergences += kl(theirs, mine).tolist()
    assert len(divergences) == count * OUTPUT
    assert np.mean(divergences) <= MAX_KL


def greedy(weights: Path, prompts: list[list[int]]) -> tuple[list[list[int]], list[Float32]]:
    """Answers, and the logits f32[OUTPUT, V] that each was chosen from."""
    runner = NumbaRunner.open(weights, num_blocks=4 * len(prompts), threads=2, cache_dir=CACHE)
    tables = [range(4 * i, 4 * i + 4) for i in range(len(prompts))]
    rows = [Row(ids, 0, table) for ids, table in zip(prompts, tables, strict=True)]
    answers: list[list[int]] = [[] for _ in prompts]
    steps = []
    for _ in range(OUTPUT):
        steps.append(logits_of(runner, rows))
        for answer, token in zip(answers, steps[-1].argmax(1).tolist(), strict=True):
            answer.append(token)
        rows = [
            Row(answer[-1:], len(prompt) + len(answer) - 1, table)
            for prompt, answer, table in zip(prompts, answers, tables, strict=True)
        ]
    runner.close()
    return answers, list(np.stack(steps, axis=1))


def kl(true: Float32, other: Float32) -> Float32:
    """Kullback-Leibler divergence KL(true ‖ other) of each row, f32[T]."""
    p, q = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True) for logits in (true, other))
    divergence: Float32 = (np.exp(p) * (p - q)).sum(axis=1)
    return divergence
