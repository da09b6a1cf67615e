"""Every Triton kernel compiles for the GPUs that it is meant for, on a machine without any."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.core.runner_suite import CACHE, ROOT

pytest.importorskip("triton")

SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}  # bytes a program may have, CUDA C programming guide


@pytest.mark.parametrize(
    ("capability", "options"),
    [(90, []), *(pytest.param(c, ["--all"], marks=pytest.mark.slow) for c in (80, 90))],
)
def test_every_kernel_compiles_and_fits(
    subprocess_env: dict[str, str], capability: int, options: list[str]
) -> None:
    env = {**subprocess_env, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(CACHE / "triton")}
    told = subprocess.run(
        [sys.executable, "-m", "tests.core.compile_triton", str(capability), *options],
        env=env, cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    kernels = set(told[::2])
    assert kernels == {
        "_attend_split", "_merge_splits", "_attend_whole", "_rotate_and_store", "_copy", "_norm",
        "_swiglu", "_product", "_product_4", "_product_8", "_choose",
    }  # fmt: skip
    assert max(int(size) for size in told[1::2]) <= SHARED_MEMORY[capability]
