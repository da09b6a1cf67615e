"""The Torch runner against the fp32 reference model, and against itself where bits must agree."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.random_models import quantize_matrices, random_weights, write_gguf
from tests.core.reference_model import ReferenceModel, kl_divergence
from tests.core.runner_suite import (
    MODELS,
    Piece,
    answers_of,
    batch_of,
    blocks_of,
    check_greedy,
    engine_over,
    random_tokens,
    reference,
    requests_that_outgrow_five_blocks,
    requests_with_shared_prefix,
    teacher_forced,
    write_model,
)

from skerry_core.config import ConfigError
from skerry_core.kernels import torch_invariant
from skerry_core.kv import convert
from skerry_core.models.torch_decoder import assemble
from skerry_core.request import Request, SamplingParams
from skerry_core.runners.torch_gpu import TorchRunner
from skerry_core.sampling import sample

ATOL = 2e-5  # of fp32 logits of order 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder, name) for name in MODELS}


@pytest.fixture(scope="module")
def references(models: dict[str, Path]) -> dict[str, ReferenceModel]:
    return {name: reference(path) for name, path in models.items()}


def open_runner(path: Path, *, num_blocks: int, **options: Any) -> TorchRunner:
    """A runner that tells every token's logits. These models are too small for a second thread."""
    return TorchRunner.open(path, num_blocks=num_blocks, max_samples=512, threads=1, **options)


@pytest.fixture(params=[False, True], ids=["default", "deterministic"])
def deterministic(request: pytest.FixtureRequest) -> bool:
    return request.param


# --- logits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunks", [(150,), (64, 64, 22), (1, 7, 100, 1, 1, 40)], ids=str)
def test_logits_equal_the_reference_in_any_chunks(
    models: dict[str, Path],
    references: dict[str, ReferenceModel],
    name: str,
    chunks: tuple[int, ...],
    deterministic: bool,
) -> None:
    runner = open_runner(models[name], num_blocks=8, deterministic=deterministic)
    tokens = random_tokens(150)
    logits = teacher_forced(runner, tokens, chunks, table=[5, 0, 3])
    np.testing.assert_allclose(logits, references[name].logits(tokens), atol=ATOL)


@pytest.mark.parametrize(
    ("dtype", "worst_kl"), [(torch.bfloat16, 2e-3), (torch.float16, 2e-5)], ids=str
)
def test_half_precision_stays_close(
    models: dict[str, Path],
    references: dict[str, ReferenceModel],
    dtype: torch.dtype,
    worst_kl: float,
) -> None:
    runner = open_runner(models["llama"], num_blocks=8, dtype=dtype)
    tokens = random_tokens(150)
    logits = teacher_forced(runner, tokens, (100, 50), table=[5, 0, 3])
    assert kl_divergence(references["llama"].logits(tokens), logits).max() < worst_kl


def test_rows_of_every_kind_share_a_step(
    models: dict[str, Path], references: dict[str, ReferenceModel], deterministic: bool
) -> None:
    runner = open_runner(models["mistral"], num_blocks=16, deterministic=deterministic)
    first, second, third = (random_tokens(n, seed=n) for n in (130, 90, 70))
    runner.execute(batch_of(Piece(first[:-1], 0, [4, 1, 9]), Piece(second[:40], 0, [2, 7])))
    runner.execute(
        batch_of(
            Piece(second[40:], 40, [2, 7]),
            Piece(first[-1:], 129, [4, 1, 9]),
            Piece(third, 0, [11, 10]),
        )
    )
    model = references["mistral"]
    expected = [model.logits(second)[40:], model.logits(first)[-1:], model.logits(third)]
    np.testing.assert_allclose(runner.last_logits(), np.concatenate(expected), atol=ATOL)


def test_what_a_block_held_before_is_not_seen(
    models: dict[str, Path], references: dict[str, ReferenceModel], deterministic: bool
) -> None:
    runner = open_runner(models["llama"], num_blocks=4, deterministic=deterministic)
    for block in range(4):
        runner.admit_block(block, np.full(runner.kv_format.shape, np.nan, np.float32))
    tokens = random_tokens(70)
    logits = teacher_forced(runner, tokens, (30, 30, 1, 9), table=[2, 1])
    np.testing.assert_allclose(logits, references["llama"].logits(tokens), atol=ATOL)


# --- engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_step_tokens", [37, 512])
def test_an_engine_gives_the_references_tokens(
    models: dict[str, Path],
    references: dict[str, ReferenceModel],
    name: str,
    max_step_tokens: int,
) -> None:
    """Chunked, mixed with decode, and the second time from shared prefixes."""
    engine = engine_over(open_runner(models[name], num_blocks=32), max_step_tokens)
    requests = requests_with_shared_prefix()
    for answers in (answers_of(engine, requests), answers_of(engine, requests)):
        for request in requests:
            check_greedy(references[name], request, answers[request.id], ATOL)
    assert engine.statistics().cache_hit_tokens > 0


def test_preempted_answers_are_the_references_tokens(
    models: dict[str, Path], references: dict[str, ReferenceModel]
) -> None:
    engine = engine_over(open_runner(models["mistral"], num_blocks=5))
    requests = requests_that_outgrow_five_blocks()
    answers = answers_of(engine, requests)
    assert engine.statistics().preemptions > 0
    for request in requests:
        check_greedy(references["mistral"], request, answers[request.id], ATOL)


def test_samples_are_the_references_choices(models: dict[str, Path]) -> None:
    engine = engine_over(runner := open_runner(models["qwen2"], num_blocks=16))
    styles = [
        SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=9, logprobs=3),
        SamplingParams(temperature=1.5, top_k=7, min_p=0.02, seed=6, max_tokens=9),
        SamplingParams(repetition_penalty=1.4, presence_penalty=0.2, max_tokens=9, logprobs=0),
        SamplingParams(temperature=1.0, seed=2**64 - 1, logit_bias=((3, 4.0),), max_tokens=9),
    ]
    for i, style in enumerate(styles):
        prompt = tuple(random_tokens(10, seed=i))
        engine.add(Request(id=str(i), prompt_ids=prompt, sampling=style))
    execute = runner.execute
    steps = 0

    def checked(batch: object) -> object:
        nonlocal steps
        steps += 1
        result = execute(batch)  # type: ignore[arg-type]
        expected = sample(runner.last_logits(), batch.sampling)  # type: ignore[attr-defined]
        for field in ("token_ids", "logprobs", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(result, field), getattr(expected, field))
        return result

    runner.execute = checked  # type: ignore[method-assign,assignment]
    while engine.has_work:
        engine.step()
    assert steps >= 9


# --- hand-over -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("split", [64, 100])
def test_another_runner_goes_on_over_exported_blocks(
    models: dict[str, Path], dtype: torch.dtype, split: int, deterministic: bool
) -> None:
    """Between equal builds the blocks are equal, so what is decoded over them is, bit for bit."""
    first, second = (
        open_runner(models["qwen3"], num_blocks=8, dtype=dtype, deterministic=deterministic)
        for _ in range(2)
    )
    assert first.numeric_build == second.numeric_build
    tokens = random_tokens(110)
    teacher_forced(first, tokens[:split], (split,), table=[3, 6])
    for there, here in ((0, 3), (5, 6))[: blocks_of(split)]:
        block = first.export_block(here)
        frozen = np.frombuffer(block.tobytes(), block.dtype).reshape(block.shape)
        second.admit_block(there, frozen)
        np.testing.assert_array_equal(second.export_block(there), block)
    rest = tokens[split:]
    answers = [
        teacher_forced_from(runner, rest, split, table)
        for runner, table in ((first, [3, 6]), (second, [0, 5]))
    ]
    np.testing.assert_array_equal(answers[0], answers[1])


def teacher_forced_from(
    runner: TorchRunner, rest: list[int], start: int, table: list[int]
) -> np.ndarray:
    logits = []
    for position, token in enumerate(rest, start):
        runner.execute(batch_of(Piece([token], position, table)))
        logits.append(runner.last_logits().copy())
    return np.concatenate(logits)


def test_blocks_cross_dtypes_by_conversion(models: dict[str, Path]) -> None:
    wide = open_runner(models["llama"], num_blocks=2)
    narrow = open_runner(models["llama"], num_blocks=2, dtype=torch.bfloat16)
    teacher_forced(wide, random_tokens(64), (64,), table=[1])
    block = convert(wide.export_block(1), "float32", "bfloat16")
    narrow.admit_block(0, block)
    np.testing.assert_array_equal(narrow.export_block(0), block)


# --- determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in MODELS), ("llama", torch.bfloat16)],
    ids=str,
)
def test_deterministic_bits_are_equal_alone_and_in_any_batch(
    models: dict[str, Path], name: str, dtype: torch.dtype
) -> None:
    runner = open_runner(models[name], num_blocks=24, dtype=dtype, deterministic=True)
    assert runner.batch_invariant
    tokens = random_tokens(100)
    alone = teacher_forced(runner, tokens, (100,), table=[0, 1])
    for chunks in ((1,) * 100, (64, 36), (3, 50, 13, 1, 33)):
        np.testing.assert_array_equal(teacher_forced(runner, tokens, chunks, [3, 9]), alone)

    others = [
        Piece(random_tokens(n, seed=n), 0, table)
        for n, table in ((5, [10]), (33, [11]), (90, [12, 13]))
    ]
    start, logits = 0, []
    for length, place in ((40, 3), (20, 2), (3, 0), (1, 1), (1, 2), (1, 3), (34, 1)):
        rows = others.copy()
        rows.insert(place, Piece(tokens[start : start + length], start, [20, 21]))
        before = sum(len(row.token_ids) for row in rows[:place])
        runner.execute(batch_of(*rows))
        logits.append(runner.last_logits()[before : before + length].copy())
        start += length
    np.testing.assert_array_equal(np.concatenate(logits), alone)


def test_deterministic_bits_do_not_depend_on_the_thread_that_calls(
    models: dict[str, Path],
) -> None:
    runner = open_runner(models["llama"], num_blocks=4, deterministic=True)
    tokens, logits = random_tokens(40), []
    caller = threading.Thread(
        target=lambda: logits.append(teacher_forced(runner, tokens, (40,), [0]))
    )
    caller.start()
    caller.join()
    np.testing.assert_array_equal(logits[0], teacher_forced(runner, tokens, (40,), [1]))


def test_deterministic_answers_survive_preemption_and_batching(models: dict[str, Path]) -> None:
    requests = requests_that_outgrow_five_blocks(temperature=1.3, seed=3, logprobs=2)
    alone = {}
    for request in requests:
        runner = open_runner(models["llama"], num_blocks=8, deterministic=True)
        alone |= answers_of(engine_over(runner), [request])
    engine = engine_over(open_runner(models["llama"], num_blocks=5, deterministic=True), 33)
    assert answers_of(engine, requests) == alone
    assert engine.statistics().preemptions > 0


def test_a_product_that_depends_on_the_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def depends(x: torch.Tensor, weight: torch.Tensor, bias: None) -> torch.Tensor:
        return x @ weight.T + torch.arange(len(x))[:, None] * 1e-6

    monkeypatch.setattr(torch_invariant, "linear", depends)
    with pytest.raises(ConfigError, match=r"deterministic is not possible on cpu: .* \(8, 4\)"):
        torch_invariant.check_products([torch.ones(8, 4)], kv_heads=1, group=1, head_dim=4)


def test_what_decides_bits_is_a_build_of_its_own(models: dict[str, Path], tmp_path: Path) -> None:
    path, config = models["llama"], MODELS["llama"]
    half = write_gguf(
        tmp_path / "half.gguf", config, random_weights(config), quantize_matrices("F16")
    )
    runners = [
        TorchRunner.open(path, num_blocks=1, threads=1),
        TorchRunner.open(path, num_blocks=1, threads=2),
        TorchRunner.open(path, num_blocks=1, threads=1, deterministic=True),
        TorchRunner.open(path, num_blocks=1, threads=1, dtype=torch.bfloat16),
        TorchRunner.open(half, num_blocks=1, threads=1),
    ]
    assert len({runner.numeric_build for runner in runners}) == len(runners)
    same = TorchRunner.open(path, num_blocks=9, max_step_tokens=7, threads=1)
    assert same.numeric_build == runners[0].numeric_build


def test_a_step_uses_the_threads_that_its_runner_was_given(models: dict[str, Path]) -> None:
    one, two = (TorchRunner.open(models["llama"], num_blocks=1, threads=n) for n in (1, 2))
    for runner, threads in ((one, 1), (two, 2), (one, 1)):
        runner.execute(batch_of(Piece([1], 0, [0])))
        assert torch.get_num_threads() == threads


# --- errors --------------------------------------------------------------------------------------


def test_a_wrong_block_is_refused(models: dict[str, Path]) -> None:
    runner = TorchRunner.open(models["qwen2"], num_blocks=2)
    with pytest.raises(ValueError, match=r"expected a block of float32\(2, 2, 1, 64, 16\), got"):
        runner.admit_block(0, np.zeros(runner.kv_format.shape, np.float16))
    with pytest.raises(ValueError, match=r"got float32\(1,\)"):
        runner.admit_block(0, np.zeros(1, np.float32))
    for block in (-1, 2):
        with pytest.raises(ValueError, match=f"there is no block {block}, only 2"):
            runner.export_block(block)


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (Piece([131], 0, [0]), r"token ids must be in \[0, 131\)"),
        (Piece([1], 512, [0] * 9), r"positions must be in \[0, 512\)"),
        (Piece([1], 64, [0]), "block table is shorter than its context"),
        (Piece([1], 64, [0, -1]), r"blocks must be in \[0, 2\)"),
        (Piece([1], 0, [2]), r"blocks must be in \[0, 2\)"),
        (Piece([1] * 33, 0, [0]), "1 to 32 tokens, got 33"),
        (Piece([1] * 20, 0, [0]), "at most 16 samples, got 20"),
    ],
)
def test_a_wrong_batch_is_refused(models: dict[str, Path], piece: Piece, message: str) -> None:
    runner = TorchRunner.open(models["qwen2"], num_blocks=2, max_step_tokens=32, max_samples=16)
    with pytest.raises(ValueError, match=message):
        runner.execute(batch_of(piece))


def test_a_wrong_dtype_is_refused() -> None:
    config = MODELS["qwen2"]
    tensors = {n: torch.from_numpy(w).double() for n, w in random_weights(config).items()}
    with pytest.raises(ConfigError, match=r"float32, float16 or bfloat16, got torch\.float64"):
        TorchRunner(config, assemble(config, tensors), num_blocks=1)


def test_numpy_torch_and_triton_are_all_it_imports(subprocess_env: dict[str, str]) -> None:
    """A GPU machine may have nothing else."""
    script = """
import sys
for name in ("numba", "llvmlite", "gguf", "xxhash", "safetensors", "jax", "msgspec"):
    sys.modules[name] = None
import skerry_core.runners.torch_gpu
"""
    subprocess.run([sys.executable, "-c", script], env=subprocess_env, check=True)
