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

DECODE = {"_rotate_and_store", "_attend_split", "_merge_splits"}
OTHERS = {
    "_attend_whole", "_copy", "_sum", "_norm", "_swiglu", "_product", "_product_4", "_product_8",
    "_product_12", "_decode_12", "_feed", "find_peaks", "take_peaks", "_fill_bins", "_sum_bins",
    "_gather", "_settle",
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
    told = compile_kernels(subprocess_env, str(capability), *(["--only", "decode"] if few else []))
    assert told.returncode == 0, told.stdout + told.stderr
    kernels = set(re.findall(r"│ (\w+) +│ +\d+ │", told.stdout))
    if few:
        assert kernels == DECODE
    else:
        assert kernels == DECODE | OTHERS | ({"_product_fp8"} if capability >= 89 else set())


@pytest.mark.parametrize(("margin", "fault"), [(0.5, "its budget is"), (2.0, "")])
def test_a_kernel_over_its_budget_is_a_fault(
    subprocess_env: dict[str, str], margin: float, fault: str
) -> None:
    told = compile_kernels(subprocess_env, "--only", "decode", "--margin", str(margin))
    assert told.returncode == bool(fault)
    assert told.stdout.count("its budget is") == (3 if fault else 0)


def test_a_product_of_12_bits_issues_less_than_its_bytes_take(
    subprocess_env: dict[str, str],
) -> None:
    told = compile_kernels(subprocess_env, "--only", "weights in bf12")
    assert told.returncode == 0, told.stdout + told.stderr
    [per_weight] = re.findall(r"│ _product_12 .* (\d\.\d) │", told.stdout)
    assert 3 < float(per_weight) <= 8  # it makes a weight of 12 bits and multiplies it
