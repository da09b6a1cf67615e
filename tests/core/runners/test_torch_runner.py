"""The Torch runner beyond the contract: dtypes, determinism, builds, threads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.open_runners import open_on_torch
from tests.core.random_models import quantize_matrices, random_weights, write_gguf
from tests.core.reference_model import kl_divergence
from tests.core.runners.hand_batches import (
    Piece,
    batch_of,
    check_same_bits_in_any_batch,
    teacher_forced,
)
from tests.core.runners.runner_suite import (
    MODELS,
    answers_of,
    engine_over,
    random_tokens,
    reference,
    requests_that_outgrow_five_blocks,
    write_model,
)

from skerry_core.config import ConfigError
from skerry_core.kernels.torch import invariant as torch_invariant
from skerry_core.kernels.torch.decoder import assemble
from skerry_core.kv.canonical import convert
from skerry_core.runners.torch.torch_runner import TorchRunner


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder, name) for name in MODELS}


def open_runner(path: Path, *, num_blocks: int, **options: Any) -> TorchRunner:
    """A runner that tells every token's logits. These models are too small for a second thread."""
    return open_on_torch(
        path, num_blocks=num_blocks, max_samples=512, threads=1, device="cpu", **options
    )


@pytest.mark.parametrize(
    ("dtype", "worst_kl"), [(torch.bfloat16, 2e-3), (torch.float16, 2e-5)], ids=str
)
def test_half_precision_stays_close(
    models: dict[str, Path], dtype: torch.dtype, worst_kl: float
) -> None:
    runner = open_runner(models["llama"], num_blocks=8, dtype=dtype)
    tokens = random_tokens(150)
    logits = teacher_forced(runner, tokens, (100, 50), table=[5, 0, 3])
    assert kl_divergence(reference(models["llama"]).logits(tokens), logits).max() < worst_kl


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
    check_same_bits_in_any_batch(runner)


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
        open_on_torch(path, num_blocks=1, threads=1),
        open_on_torch(path, num_blocks=1, threads=2),
        open_on_torch(path, num_blocks=1, threads=1, deterministic=True),
        open_on_torch(path, num_blocks=1, threads=1, dtype=torch.bfloat16),
        open_on_torch(half, num_blocks=1, threads=1),
    ]
    assert len({runner.numeric_build for runner in runners}) == len(runners)
    same = open_on_torch(path, num_blocks=9, max_step_tokens=7, threads=1)
    assert same.numeric_build == runners[0].numeric_build


def test_a_step_uses_the_threads_that_its_runner_was_given(models: dict[str, Path]) -> None:
    one, two = (open_on_torch(models["llama"], num_blocks=1, threads=n) for n in (1, 2))
    for runner, threads in ((one, 1), (two, 2), (one, 1)):
        runner.execute(batch_of(Piece([1], 0, [0])))
        assert torch.get_num_threads() == threads


def test_a_wrong_dtype_is_refused() -> None:
    config = MODELS["qwen2"]
    tensors = {n: torch.from_numpy(w).double() for n, w in random_weights(config).items()}
    with pytest.raises(ConfigError, match=r"float32, float16 or bfloat16, got torch\.float64"):
        TorchRunner(config, assemble(config, tensors), num_blocks=1)


def test_numpy_torch_and_triton_are_all_that_runner_and_engine_import(
    subprocess_env: dict[str, str],
) -> None:
    """A GPU machine may have nothing else. Nor need it for what measures there."""
    script = """
import builtins, sys
known = {*sys.stdlib_module_names, "skerry_core", "bench", "numpy", "torch", "triton"}
found, plain = {}, builtins.__import__

def noting(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if level == 0 and importer.split(".")[0] in ("skerry_core", "bench"):
        found.setdefault(name.split(".")[0], importer)
    return plain(name, globals, locals, fromlist, level)

builtins.__import__ = noting
import skerry_core.runners.torch.torch_runner
import skerry_core.engine.worker
if sys.argv[1:]:
    import bench.gpu
    import bench.device.gpu_figures
    assert "triton" in found
assert {"skerry_core", "numpy", "torch"} <= found.keys()
others = {name: importer for name, importer in found.items() if name not in known}
assert not others, others
"""
    own = ["triton"] if importlib.util.find_spec("triton") else []
    subprocess.run([sys.executable, "-c", script, *own], env=subprocess_env, check=True)
