"""Every family on the CPU: a token's logits are the same bits however they are computed.

What `test_numba_exactness` and `test_numba_engine` do at length on a Llama.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.cpu.test_exactness_matrix import engine_over, open_runner, prefilled
from tests.core.cpu.test_numba_engine import check
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import check_same_bits_in_any_batch, teacher_forced
from tests.core.runners.runner_suite import CACHE, random_tokens
from tests.core.runners.saved_family import TOKENS, Saved, save
from tests.core.toy_oracle import run

from skerry_core.runners.numba_cpu import NumbaRunner

ANSWER = 12  # tokens
REQUESTS = [
    Request(
        id=str(seed),
        prompt_ids=tuple(random_tokens(length, seed=seed)),
        sampling=SamplingParams(max_tokens=ANSWER, temperature=0.8, top_p=0.95, seed=seed),
    )
    for seed, length in enumerate((150, 70, 20))
]


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(FAMILIES[request.param], tmp_path_factory.mktemp("family"))


def test_any_batch_chunks_threads_and_blocks(saved: Saved) -> None:
    """The same alone, in any batch and chunks, on any threads, and over blocks handed over."""
    options: dict[str, Any] = {
        "num_blocks": 22, "max_step_tokens": 256, "max_samples": 256, "cache_dir": CACHE,
    }  # fmt: skip
    runner = NumbaRunner.open(saved.folder, threads=1, **options)
    check_same_bits_in_any_batch(runner)
    alone = teacher_forced(runner, TOKENS, (150,), table=[5, 0, 3])
    other = NumbaRunner.open(saved.folder, threads=2, **options)
    for here, there in ((5, 7), (0, 1)):
        other.admit_block(there, runner.export_block(here))
    rest = teacher_forced(other, TOKENS[128:], (21, 1), table=[7, 1, 2], start=128)
    np.testing.assert_array_equal(rest, alone[128:])
    chunked = teacher_forced(other, TOKENS, (77, 1, 72), table=[8, 9, 4])
    np.testing.assert_array_equal(chunked, alone)
    runner.close()
    other.close()


def test_from_cache_and_after_a_hand_over(saved: Saved) -> None:
    """Through engines: each request alone, all at once over what those left in the cache, and each
    over blocks that another engine has computed in chunks."""
    runner, other = (open_runner(saved.folder, threads, num_blocks=12) for threads in (1, 2))
    engine, tokens = engine_over(runner), dict[str, list[int]]()
    for one in REQUESTS:
        engine.add(one.sequence())
        tokens |= {id: answer.token_ids for id, answer in run(engine).items()}
    alone = runner.seen, tokens
    assert check(engine, REQUESTS, alone) == 128 + 64
    for one in REQUESTS:
        handed = prefilled(runner, one, step_tokens=70)
        decoding, other.seen = engine_over(other), {}
        decoding.add(handed.sequence())
        assert [*handed.output_ids, *run(decoding)[one.id].token_ids] == tokens[one.id]
        assert decoding.statistics().computed_tokens == len(other.seen) == ANSWER - 1
        for key, logits in other.seen.items():
            np.testing.assert_array_equal(logits.view(np.int32), alone[0][key].view(np.int32))
    runner.close()
    other.close()
