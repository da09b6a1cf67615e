"""The contract of `ModelRunner`, for every kind of runner: logits, blocks, engines, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.runners.hand_batches import (
    Piece,
    batch_of,
    check_same_bits_in_any_batch,
    teacher_forced,
)
from tests.core.runners.opened_models import NUM_BLOCKS, Models
from tests.core.runners.runner_suite import (
    KINDS,
    VOCAB,
    answers_of,
    check_greedy,
    engine_over,
    random_tokens,
    requests_that_outgrow_five_blocks,
    requests_with_shared_prefix,
)

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.config import BLOCK_SIZE
from skerry_core.kv.canonical import from_float32, kv_dtype
from skerry_core.runner import OverlappingRunner
from skerry_core.sampling import sample

EACH = [(kind, model) for kind in KINDS for model in KINDS[kind].models]
SLOW = [("jax", model) for model in ("qwen3", "smollm3")]  # with features of `test_families`


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()


every_kind = pytest.mark.parametrize("kind", KINDS)
every_model = pytest.mark.parametrize(
    ("kind", "model"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each in SLOW)) for each in EACH],
)


def first_model(kind: str) -> str:
    return KINDS[kind].models[0]


def close(kind: str) -> float:
    return KINDS[kind].atol


# --- logits --------------------------------------------------------------------------------------


@every_model
def test_logits_are_the_references_in_any_chunks(models: Models, kind: str, model: str) -> None:
    runner, tokens = models.runner(kind, model), random_tokens(150)
    expected = models.reference(model).logits(tokens)
    for chunks in ((150,), (64, 64, 22), (1, 7, 100, 1, 1, 40)):
        logits = teacher_forced(runner, tokens, chunks, table=[5, 0, 3])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=close(kind), err_msg=str(chunks))


@every_kind
def test_rows_of_every_length_share_a_step(models: Models, kind: str) -> None:
    model = KINDS[kind].models[-1]
    runner = models.runner(kind, model)
    first, second, third = (random_tokens(n, seed=n) for n in (130, 90, 70))
    runner.execute(batch_of(Piece(first[:-1], 0, [4, 1, 9]), Piece(second[:40], 0, [2, 7])))
    runner.execute(
        batch_of(
            Piece(second[40:], 40, [2, 7]),
            Piece(first[-1:], 129, [4, 1, 9]),
            Piece(third, 0, [11, 10]),
        )
    )
    of = models.reference(model).logits
    expected = np.concatenate([of(second)[40:], of(first)[-1:], of(third)])
    np.testing.assert_allclose(runner.last_logits(), expected, rtol=0, atol=close(kind))


@every_kind
def test_what_a_block_held_before_is_not_seen(models: Models, kind: str) -> None:
    model = first_model(kind)
    runner = models.runner(kind, model)
    format_ = runner.kv_format
    largest = np.full(format_.shape, 6e4, np.float32)
    for block in range(NUM_BLOCKS):
        runner.admit_block(block, from_float32(largest, format_.dtype))
    tokens = random_tokens(70)
    logits = teacher_forced(runner, tokens, (30, 30, 1, 9), table=[2, 1])
    expected = models.reference(model).logits(tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=close(kind))


@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith(("torch", "jax"))])
def test_not_even_nan_is_seen(models: Models, kind: str) -> None:
    """Where KV may be admitted unchecked."""
    runner = models.runner(kind, "llama")
    for block in range(NUM_BLOCKS):
        runner.admit_block(block, np.full(runner.kv_format.shape, np.nan, np.float32))
    tokens = random_tokens(70)
    logits = teacher_forced(runner, tokens, (30, 30, 1, 9), table=[2, 1])
    expected = models.reference("llama").logits(tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=close(kind))


@every_kind
def test_who_declares_batch_invariance_keeps_it(models: Models, kind: str) -> None:
    runner = models.runner(kind, first_model(kind))
    assert runner.batch_invariant == KINDS[kind].batch_invariant
    if runner.batch_invariant:
        check_same_bits_in_any_batch(runner)


# --- blocks --------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("split", [64, 100])
def test_another_runner_goes_on_over_exported_blocks(models: Models, kind: str, split: int) -> None:
    """The same blocks and the same steps give the same bits, whatever the runner declares."""
    first, second = (models.runner(kind, first_model(kind), number) for number in (0, 1))
    assert first.numeric_build == second.numeric_build
    tokens = random_tokens(110)
    teacher_forced(first, tokens[:split], (split,), table=[3, 6])
    for there, here in ((0, 3), (5, 6))[: -(-split // BLOCK_SIZE)]:
        block = first.export_block(here)
        assert block.shape == first.kv_format.shape
        assert block.dtype == kv_dtype(first.kv_format.dtype)
        frozen = np.frombuffer(block.tobytes(), block.dtype).reshape(block.shape)
        second.admit_block(there, frozen)
        np.testing.assert_array_equal(second.export_block(there), block)
    for position, token in enumerate(tokens[split:], split):
        first.execute(batch_of(Piece([token], position, [3, 6])))
        second.execute(batch_of(Piece([token], position, [0, 5])))
        np.testing.assert_array_equal(first.last_logits(), second.last_logits())


@every_kind
def test_an_exported_block_is_a_copy(models: Models, kind: str) -> None:
    runner = models.runner(kind, first_model(kind))
    teacher_forced(runner, random_tokens(64, seed=1), (64,), table=[3])
    block = runner.export_block(3)
    kept = block.copy()
    teacher_forced(runner, random_tokens(64, seed=2), (64,), table=[3])
    np.testing.assert_array_equal(block, kept)
    assert (runner.export_block(3) != kept).any()


# --- engines -------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("max_step_tokens", [37, 512])
def test_an_engine_gives_the_references_tokens(
    models: Models, kind: str, max_step_tokens: int
) -> None:
    """Chunked, mixed with decode, and the second time from shared prefixes."""
    model = KINDS[kind].models[-1]
    engine = engine_over(models.runner(kind, model), max_step_tokens)
    requests = requests_with_shared_prefix()
    for answers in (answers_of(engine, requests), answers_of(engine, requests)):
        for request in requests:
            check_greedy(models.reference(model), request, answers[request.id], close(kind))
    assert engine.statistics().cache_hit_tokens > 0


@every_kind
def test_preempted_answers_are_the_references_tokens(models: Models, kind: str) -> None:
    model = KINDS[kind].models[-1]
    runner = models.open(kind, model, num_blocks=5)
    engine = engine_over(runner)
    requests = requests_that_outgrow_five_blocks()
    answers = answers_of(engine, requests)
    assert engine.statistics().preemptions > 0
    for request in requests:
        check_greedy(models.reference(model), request, answers[request.id], close(kind))
    runner.close()


STYLES = [
    SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=9, logprobs=3),
    SamplingParams(temperature=1.5, top_k=7, min_p=0.02, typical_p=0.9, seed=6, max_tokens=9),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.2, max_tokens=9, logprobs=0),
    SamplingParams(temperature=1.0, seed=2**64 - 1, logit_bias=((3, 4.0),), max_tokens=9),
]


@every_kind
def test_every_choice_is_that_of_the_meaning_in_numpy(
    models: Models, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = models.runner(kind, first_model(kind))
    execute, num_samples = runner.execute, 0
    launched: list[ForwardBatch] = []

    def checked(batch: ForwardBatch, result: StepResult) -> StepResult:
        nonlocal num_samples
        num_samples += batch.num_samples
        expected = sample(runner.last_logits(), batch.sampling)
        for field in ("token_ids", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(result, field), getattr(expected, field))
        asked = batch.sampling.samples["num_logprobs"] >= 0
        np.testing.assert_array_equal(result.logprobs[asked], expected.logprobs[asked])
        return result

    if isinstance(runner, OverlappingRunner):
        launch, collect = runner.launch, runner.collect
        monkeypatch.setattr(runner, "steps_ahead", 0)  # logits are there until the next launch
        monkeypatch.setattr(runner, "launch", lambda batch: (launched.append(batch), launch(batch)))
        monkeypatch.setattr(runner, "collect", lambda: checked(launched.pop(), collect()))
    else:
        monkeypatch.setattr(runner, "execute", lambda batch: checked(batch, execute(batch)))
    requests = [
        Request(id=str(i), prompt_ids=tuple(random_tokens(10, seed=i)), sampling=style)
        for i, style in enumerate(STYLES)
    ]
    answers_of(engine_over(runner), requests)
    assert num_samples == 9 * len(STYLES)


# --- refusals ------------------------------------------------------------------------------------


@every_kind
def test_a_wrong_block_is_refused(models: Models, kind: str) -> None:
    runner = models.runner(kind, first_model(kind))
    block = runner.export_block(0)
    for wrong in (block[:1], block.astype(np.float64)):
        with pytest.raises(ValueError, match="expected a block of"):
            runner.admit_block(0, wrong)
    for number in (-1, NUM_BLOCKS):
        with pytest.raises(ValueError, match=f"there is no block {number}, only {NUM_BLOCKS}"):
            runner.export_block(number)
        with pytest.raises(ValueError, match=f"there is no block {number}, only {NUM_BLOCKS}"):
            runner.admit_block(number, block)


@every_kind
def test_a_wrong_batch_is_refused(models: Models, kind: str) -> None:
    runner = models.open(kind, first_model(kind), num_blocks=2, max_step_tokens=32, max_samples=16)
    for piece, message in (
        (Piece([VOCAB], 0, [0]), rf"token ids must be in \[0, {VOCAB}\)"),
        (Piece([-1], 0, [0]), rf"token ids must be in \[0, {VOCAB}\)"),
        (Piece([1], 128, [0] * 3), r"positions must be in \[0, 128\)"),  # two blocks hold no more
        (Piece([1], 64, [0]), "block table is shorter than its context"),
        (Piece([1], 64, [0, -1]), r"blocks must be in \[0, 2\)"),
        (Piece([1], 0, [2]), r"blocks must be in \[0, 2\)"),
        (Piece([1] * 33, 0, [0]), "1 to 32 tokens, got 33"),
        (Piece([1] * 20, 0, [0]), "at most 16 samples, got 20"),
    ):
        with pytest.raises(ValueError, match=message):
            runner.execute(batch_of(piece))
    runner.close()
