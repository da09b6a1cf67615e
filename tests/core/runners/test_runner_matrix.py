"""Prefill on one kind of runner, decode on another: KV crosses in canonical form between all pairs.

Teacher-forced, so that a different token could not hide what follows it. The fp32 reference says
what is right: both must choose alike wherever its two best logits are further apart than CLEAR.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.open_runners import open_on_jax, open_on_torch
from tests.core.reference_model import kl_divergence
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced
from tests.core.runners.runner_suite import (
    CACHE,
    KINDS,
    check_greedy,
    engine_over,
    random_tokens,
    reference,
    write_model,
)
from tests.core.toy_oracle import run
from tokenizers import Tokenizer

from skerry_core.batch import Float32
from skerry_core.config import BLOCK_SIZE
from skerry_core.kv.canonical import convert
from skerry_core.request import KVBlock
from skerry_core.runner import ModelRunner
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_regions.models.model_files import ModelFiles

RUNNERS = ("numba", "torch", "jax")
PAIRS = [pytest.param(*pair, id=" to ".join(pair)) for pair in product(RUNNERS, repeat=2)]


@dataclass(frozen=True)
class Bounds:
    """How far decoding may be from the fp32 reference, whoever did the prefill."""

    clear: float  # a gap of logits
    mean_kl: float  # nats, over all decoded tokens


def decode_after(
    prefill: ModelRunner, decode: ModelRunner, tokens: Sequence[int], split: int
) -> Float32:
    """Logits of the tokens from `split` on, one step each, over KV that came from another runner.

    Two prompts of the same tokens share a step, in different blocks.
    """
    count = -(-len(tokens) // BLOCK_SIZE)
    there, here = list(range(count))[::-1], [list(range(1, count + 1)), list(range(7, 7 + count))]
    teacher_forced(prefill, tokens[:split], (split - 20, 20), there)
    dtype = prefill.kv_format.dtype
    exported = [prefill.export_block(block) for block in there[: -(-split // BLOCK_SIZE)]]
    for index, data in enumerate(exported):
        for table in here:
            decode.admit_block(table[index], convert(data, dtype, decode.kv_format.dtype))
    logits = []
    for position, token in enumerate(tokens[split:], split):
        decode.execute(batch_of(*(Piece([token], position, table) for table in here)))
        logits.append(decode.last_logits().copy())
    return np.stack(logits, axis=1)


def check(logits: Float32, expected: Float32, bounds: Bounds) -> None:
    """`logits` f32[2, n, V] of two rows against the reference's f32[n, V]."""
    ordered = np.sort(expected, axis=-1)
    is_clear = ordered[:, -1] - ordered[:, -2] > bounds.clear
    assert is_clear.mean() > 0.5  # the bound leaves something to be tested
    for row in logits:
        assert (row.argmax(-1) == expected.argmax(-1))[is_clear].all()
        assert kl_divergence(expected, row).mean() < bounds.mean_kl


# --- a small random model ------------------------------------------------------------------------

SMALL = Bounds(clear=0.01, mean_kl=1e-6)
ATOL = 5e-3  # of logits of order 1; the CPU kernels keep KV in float16


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture(scope="module")
def small(weights: Path) -> Iterator[dict[str, ModelRunner]]:
    runners = {
        kind: KINDS[kind].open(weights, num_blocks=24, max_step_tokens=512, max_samples=512)
        for kind in RUNNERS
    }
    assert len({runner.numeric_build for runner in runners.values()}) == len(RUNNERS)
    yield runners
    for runner in runners.values():
        runner.close()


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_any_runner_goes_on_where_any_other_stopped(
    weights: Path, small: dict[str, ModelRunner], prefill: str, decode: str
) -> None:
    tokens, split = random_tokens(200), 170
    logits = decode_after(small[prefill], small[decode], tokens, split)
    check(logits, reference(weights).logits(tokens)[split:], SMALL)


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_a_request_moves_between_engines(
    weights: Path, small: dict[str, ModelRunner], prefill: str, decode: str
) -> None:
    request = Request(
        id="r", prompt_ids=tuple(random_tokens(150)), exports_kv=True,
        sampling=SamplingParams(max_tokens=1, logprobs=0),
    )  # fmt: skip
    blocks: list[KVBlock] = []
    first, second = engine_over(small[prefill]), engine_over(small[decode])
    first.add(request.sequence())
    made: tuple[int, ...] = ()
    while first.has_work:
        for output in first.step():
            blocks += output.kv
            made += tuple(output.token_ids)
    assert [block.num_tokens for block in blocks] == [64, 64, 22]

    rest = replace(
        request, kv=tuple(blocks), exports_kv=False, output_ids=made,
        sampling=replace(request.sampling, max_tokens=12),
    )  # fmt: skip
    second.add(rest.sequence())
    answer = run(second)["r"]
    assert second.statistics().computed_tokens == 11  # the prompt's tokens did not run again
    told = replace(
        rest, prompt_ids=(*rest.prompt_ids, *made), sampling=SamplingParams(max_tokens=11)
    )
    check_greedy(reference(weights), told, answer, ATOL)


# --- the default model ---------------------------------------------------------------------------

REAL = Bounds(clear=0.01, mean_kl=1e-6)
# The CPU kernels multiply int4 weights by int8 activations, the others and the reference in fp32.
REAL_QUANTIZED = Bounds(clear=0.5, mean_kl=0.01)
PROMPTS: list[str] = json.loads((Path(__file__).parents[1] / "data/prompts.json").read_text())


@pytest.fixture(scope="module")
def real(default_model: ModelFiles) -> Iterator[dict[str, ModelRunner]]:
    path, blocks = default_model.weights, 16
    runners: dict[str, ModelRunner] = {
        "numba": NumbaRunner.open(path, num_blocks=blocks, max_samples=160, cache_dir=CACHE),
        "torch": open_on_torch(path, num_blocks=blocks, max_samples=160, threads=1),
        "jax": open_on_jax(path, num_blocks=blocks, max_samples=160, cache_dir=CACHE),
    }
    yield runners
    for runner in runners.values():
        runner.close()


@pytest.fixture(scope="module")
def text(default_model: ModelFiles) -> tuple[list[int], Float32]:
    """Tokens, and the reference's logits of them."""
    tokenizer = Tokenizer.from_file(str(default_model.tokenizer))
    tokens = tokenizer.encode(" ".join(PROMPTS)).ids[:160]
    return tokens, reference(default_model.weights).logits(tokens)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_the_default_model_moves_between_any_two(
    real: dict[str, ModelRunner], text: tuple[list[int], Float32], prefill: str, decode: str
) -> None:
    (tokens, expected), split = text, 120
    logits = decode_after(real[prefill], real[decode], tokens, split)
    bounds = REAL_QUANTIZED if "numba" in (prefill, decode) else REAL
    check(logits, expected[split:], bounds)
