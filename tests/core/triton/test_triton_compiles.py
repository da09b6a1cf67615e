"""Every Triton kernel compiles for the GPUs that it is meant for, on a machine without any."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.core.runners.runner_suite import CACHE, ROOT

pytest.importorskip("triton")

DECODE = {"_rotate_and_store", "_attend_split", "_merge_splits"}
OTHERS = {
    "_attend_whole", "_copy", "_sum", "_norm", "_swiglu", "_product", "_product_4", "_product_8",
    "_choose",
}  # fmt: skip
SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}  # bytes a program may have, CUDA C programming guide


@pytest.mark.parametrize(
    ("capability", "which"),
    [(90, "--few"), *(pytest.param(c, "--all", marks=pytest.mark.slow) for c in (80, 90))],
)
def test_kernels_compile_and_fit(
    subprocess_env: dict[str, str], capability: int, which: str
) -> None:
    env = {**subprocess_env, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(CACHE / "triton")}
    told = subprocess.run(
        [sys.executable, "-m", "tests.core.triton.compile_triton", str(capability), which],
        env=env, cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    kernels = set(told[::2])
    if which == "--few":
        assert kernels == DECODE
    else:
        assert kernels == DECODE | OTHERS | ({"_product_fp8"} if capability >= 89 else set())
    assert max(int(size) for size in told[1::2]) <= SHARED_MEMORY[capability]
