"""Every Triton kernel compiles for the GPUs that it is meant for, on a machine without any: it
fits, does not spill, and has no more instructions than its budget."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.core.runners.runner_suite import CACHE, ROOT

pytestmark = pytest.mark.triton

pytest.importorskip("triton")

DECODE = {"_attend_split", "_product_few"}
OTHERS = {
    "_attend_whole", "_copy", "_decode_12", "_feed", "_fill_bins", "_gather", "_merge_chunks",
    "_norm", "_product", "_product_12", "_product_narrow", "_rotate_and_store", "_settle", "_sum",
    "_sum_bins", "_swiglu", "_widen", "find_peaks", "take_peaks",
}  # fmt: skip


def compile_kernels(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**env, "TRITON_CACHE_DIR": str(CACHE / "triton")}
    command = [sys.executable, "-m", "bench.gpu_aot", *arguments]
    return subprocess.run(command, env=env, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("capability", "few"),
    [(90, True), *(pytest.param(c, False, marks=pytest.mark.slow) for c in (80, 90))],
)
def test_kernels_compile_and_fit(
    subprocess_env: dict[str, str], capability: int, few: bool
) -> None:
    only = ["--only", "decode", "few rows"] if few else []
    told = compile_kernels(subprocess_env, str(capability), *only)
    assert told.returncode == 0, told.stdout + told.stderr
    kernels = set(re.findall(r"│ ([a-z_]\w+) +│ +\d+ │", told.stdout))
    if few:
        assert kernels == DECODE
        # 16 rows of weights, 64 bytes 64 times, by 128 threads; or 32 times of each half.
        assert re.findall(
            r"│ _product_few .*│ +(\d*) │ +\d+ │ +\d+ │ +│$", told.stdout, re.M
        ) == 3 * ["8"]
    else:
        assert kernels == DECODE | OTHERS | (
            {"_product_fp8", "_narrow_rows"} if capability >= 89 else set()
        )


def test_a_kernel_over_its_budget_is_a_fault(subprocess_env: dict[str, str]) -> None:
    told = compile_kernels(subprocess_env, "--only", "decode", "--margin", "0.5")
    assert told.returncode == 1
    assert told.stdout.count("its budget is") == 1
    assert "waits for each load" not in told.stdout  # decoding has two blocks in flight


@pytest.mark.parametrize(
    ("variant", "kernel", "most"),
    [
        ("weights in bf12", "_product_12", 8),
        *(
            pytest.param(variant, "_product_narrow", most, marks=pytest.mark.slow)
            for variant, most in {
                "weights in int8": 4.3, "weights in fp8": 4.3, "weights in int8, 16 rows": 7.3,
                "weights in int4": 4.3, "weights in int4, 16 rows": 5.2,
            }.items()
        ),
    ],
)  # fmt: skip
def test_a_decode_step_issues_less_for_a_weight_than_its_bytes_take(
    subprocess_env: dict[str, str], variant: str, kernel: str, most: float
) -> None:
    told = compile_kernels(subprocess_env, "--only", variant)
    assert told.returncode == 0, told.stdout + told.stderr
    [per_weight] = re.findall(rf"│ {kernel} .* (\d\.\d) │", told.stdout)
    assert 2 < float(per_weight) <= most  # it makes a weight of few bits and multiplies it
