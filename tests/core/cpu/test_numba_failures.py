"""A row whose logits are not finite fails alone: its request by name, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.cpu.numba_steps import Row, batch_of, table_for
from tests.core.cpu.test_numba_exactness import SMALL, open_runner
from tests.core.random_models import random_weights, write_gguf

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import Output
from skerry_core.runners.numba_cpu import NumbaRunner

MODEL = replace(SMALL, tied_embeddings=False)
BROKEN = 7  # the token whose embedding is not a number


def formats(name: str) -> str:
    if "norm" in name or name == "token_embd.weight":
        return "F32"
    return "Q4_1"


@pytest.fixture(scope="module", params=[np.nan, np.inf], ids=["NaN", "infinite"])
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NumbaRunner]:
    weights = random_weights(MODEL)
    weights["token_embd.weight"][BROKEN, 3] = request.param
    path = write_gguf(tmp_path_factory.mktemp("broken") / "broken.gguf", MODEL, weights, formats)
    opened = open_runner(path, num_blocks=32)
    yield opened
    opened.close()


def test_no_token_is_chosen_for_that_row_only(runner: NumbaRunner) -> None:
    good = Row([11, 12, 13], 0, table_for(3, first=0))
    broken = Row([11, BROKEN, 13], 0, table_for(3, first=1), sampled=[0, 1])
    alone = runner.execute(batch_of([good])).token_ids.copy()
    alone_logits = runner.last_logits().copy()
    assert np.isfinite(alone_logits).all()
    together = runner.execute(batch_of([good, broken])).token_ids
    assert together[0] == alone[0] >= 0
    assert together[1] >= 0  # the token before it
    assert together[2] == -1
    np.testing.assert_array_equal(
        runner.last_logits()[0].view(np.int32), alone_logits[0].view(np.int32)
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_that_request_fails_and_the_engine_goes_on(runner: NumbaRunner, temperature: float) -> None:
    engine = Engine(runner, EngineConfig(), model_key=b"broken")
    sampling = SamplingParams(temperature=temperature, top_p=0.95, seed=1, max_tokens=5)
    prompts = {"good": (11,) * 70, "broken": (11,) * 69 + (BROKEN,), "later": (12,) * 5}
    for name in ("good", "broken"):
        engine.add(Request(id=name, prompt_ids=prompts[name], sampling=sampling).sequence())
    outputs = finish(engine)
    broken = outputs["broken"][-1]
    assert [o.token_ids for o in outputs["broken"]] == [[]]
    assert broken.finish_reason == "cancelled"
    assert broken.failure == "the model's output for this request is not a number"
    assert sum(len(o.token_ids) for o in outputs["good"]) == 5
    engine.add(Request(id="later", prompt_ids=prompts["later"], sampling=sampling).sequence())
    assert finish(engine)["later"][-1].finish_reason == "length"
    figures = engine.statistics()
    assert (figures.running, figures.waiting, figures.blocks_used) == (0, 0, 0)
    assert figures.blocks_cached + figures.blocks_free == runner.num_blocks


def finish(engine: Engine) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs
