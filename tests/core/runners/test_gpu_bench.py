"""The programs for a GPU where there is none: they refuse, with `--dry` they run to the end, and a
part that fails costs itself alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.runners.runner_suite import ROOT

pytest.importorskip("triton")

from bench.device.gpu_batches import decoding
from bench.device.gpu_checks import MOST_DISTANCE, Answers, answers, check_moved
from bench.device.gpu_sizes import DRY, TINY
from bench.device.gpu_steps import fill
from bench.device.gpu_streams import least_seconds
from bench.device.gpu_subject import Subject
from bench.device.peers.gpu_compiled import CompiledDecoder
from bench.device.random_weights import random_weights

from skerry_core.runners.torch.torch_runner import TorchRunner

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(torch.cuda.is_available(), reason="shows what they do without a GPU"),
]
CPU = torch.device("cpu")
BARE = "tests.core.triton.bare_machine"


def started(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=env, cwd=ROOT, check=False, capture_output=True, text=True
    )


def test_it_refuses_without_a_gpu(subprocess_env: dict[str, str]) -> None:
    told = started(subprocess_env, "-m", "bench.gpu")
    assert told.returncode == 2
    assert "measures a CUDA device, and there is none" in told.stderr


def test_a_gpus_machine_has_all_that_is_imported(subprocess_env: dict[str, str]) -> None:
    """By the programs, and by the tests that run there."""
    collected = ["-m", "gpu", "--co", "-q", "tests/core/triton"]
    script = f"""
import {BARE}, bench.device.gpu_profiles, bench.device.sweep.cases, pytest, sys
sys.exit(pytest.main({collected}))
"""
    told = started(subprocess_env, "-c", script)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "only", ["ceilings", pytest.param("", marks=pytest.mark.slow)], ids=["ceilings", "all"]
)
def test_a_dry_run_tells_its_figures(
    subprocess_env: dict[str, str], tmp_path: Path, only: str
) -> None:
    file = tmp_path / "gpu.json"
    told = started(subprocess_env, "-m", "bench.gpu", "--dry", "--json", str(file), "--only", only)
    assert told.returncode == 0, told.stderr
    report = json.loads(file.read_text())
    assert report["dry"]
    rows: list[Any] = [row for part in report["parts"].values() for row in part["rows"]]
    figures = {figure["name"]: figure for figure in rows}
    assert figures["matrix product"]["value"] > 0
    if not only:
        assert len(report["parts"]) == 27
        assert len(figures) == len(rows) > 50
        assert all(figure["value"] >= 0 for figure in rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dry_profile_tells_steps_and_their_kernels(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "profile.json"
    told = started(subprocess_env, "-m", "bench.gpu_profile", "--dry", "--json", str(file))
    assert told.returncode == 0, told.stderr
    parts = json.loads(file.read_text())["parts"]
    assert list(parts) == ["decode, 1 rows", "decode, 2 rows", "prefill"]
    for part in parts.values():
        step, *kernels = part["rows"]
        assert min(step["busy"], step["elapsed"], step["least"]) > 0
        assert sum(kernel["share"] for kernel in kernels) == pytest.approx(1)
        assert sum(kernel["micros"] for kernel in kernels) >= 1e3 * step["busy"] * 0.999


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dry_sweep_tries_candidates_of_every_case(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.json"
    told = started(subprocess_env, "-m", "bench.gpu_sweep", "--dry", "--json", str(file))
    assert told.returncode == 0, told.stderr
    parts = json.loads(file.read_text())["parts"]
    assert len(parts) == 21
    for name, part in parts.items():
        changes = {row["change"]: row["failure"] for row in part["rows"]}
        assert changes["as it is"] == ""
        assert len(changes) > 1, name
        assert not any("values" in failure for failure in changes.values())


# --- parts that fail -----------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from bench.device.gpu_program import Part, Program, run
from bench.device.gpu_report import Figure

def wrong(): raise ValueError("no")
def gone(): os._exit(9)
def good(name): return [Figure(name, os.getpid(), "id")]

PARTS = [
    Part("first", 1, lambda: good("first")), Part("wrong", 1, wrong), Part("gone", 1, gone),
    Part("slow", 1e9, lambda: good("slow")), Part("last", 1, lambda: good("last")),
    Part("other", 1, lambda: good("other")),
]
if __name__ == "__main__":
    sys.exit(run(Program("a_program", "Try.", 500.0, lambda is_dry: ({"name": "none"}, PARTS))))
"""


def test_what_comes_after_a_process_that_ended_is_measured_by_another(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "a_program.py").write_text(PROGRAM)
    env = subprocess_env | {"PYTHONPATH": f"{tmp_path}:{subprocess_env['PYTHONPATH']}"}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"parts": {"first": {}}, "failures": {}}))  # of an earlier run
    told = started(env, "-m", "a_program", "--json", str(file), "--skip", "other")
    assert told.returncode == 1
    report = json.loads(file.read_text())
    failures = report["failures"]
    assert failures.pop("slow").startswith("needs 1e+09 s, ")
    assert failures == {"wrong": "ValueError: no", "gone": "the process ended with 9"}
    (first,), (last,) = (report["parts"][name]["rows"] for name in ("first", "last"))
    assert list(report["parts"]) == ["first", "last"]
    assert first["value"] != last["value"]
    assert told.stdout.splitlines()[0].startswith("first: ")


# --- what is measured ----------------------------------------------------------------------------


def test_wrong_answers_are_told_from_right_ones() -> None:
    weights = random_weights(TINY, CPU, torch.float32)
    runner = TorchRunner(TINY, weights, num_blocks=4)
    told = answers(runner, 70)
    assert told.distance(told) == 0
    assert told.distance(Answers(told.prefill, told.decode[::-1])) > MOST_DISTANCE
    check_moved(runner, 70, told.decode)
    wrong = told.decode.copy()
    wrong[5] = np.nextafter(wrong[5], np.float32(np.inf))
    with pytest.raises(RuntimeError, match="after KV was moved, 1 logits are others"):
        check_moved(runner, 70, wrong)


def test_steps_follow_one_another() -> None:
    """Rows of unlike contexts have blocks of their own, and take what the step before made."""
    first, second = decoding([20, 64, 130], 2)
    assert first.block_tables.tolist() == [[0, -1, -1], [1, 2, -1], [3, 4, 5]]
    assert (first.positions.tolist(), second.positions.tolist()) == ([19, 63, 129], [20, 64, 130])
    assert first.feeds is None
    assert second.feeds is not None
    subject = Subject(DRY, CPU)
    runner = TorchRunner(TINY, subject.weights, num_blocks=6)
    fill(subject, runner)
    made = runner.execute(first).token_ids.copy()
    told = runner.execute(second).token_ids.copy()
    second.token_ids, second.feeds = made, None
    np.testing.assert_array_equal(runner.execute(second).token_ids, told)
    assert runner.export_block(5).std() == pytest.approx(1, abs=0.1)


def test_the_compiled_peer_computes_what_our_runner_does() -> None:
    weights = random_weights(TINY, CPU, torch.float32)
    runner = TorchRunner(TINY, weights, num_blocks=2)
    peer = CompiledDecoder(TINY, weights, 2, 8, "SDPA", is_compiled=False)
    peer.position.fill_(0)
    for step in decoding([1, 1], 5):
        step.token_ids = peer.ids.numpy().astype(np.int32)
        step.feeds = None
        runner.execute(step)
        peer.step()
        np.testing.assert_allclose(peer.logits.numpy(), runner.last_logits(), atol=1e-5)


def test_the_least_time_of_requests_is_that_of_their_bytes_and_operations() -> None:
    subject = Subject(DRY, CPU)
    subject.copy_rate, subject.product_rate = 1e9, 1e12
    token = 2 * 16 * 4  # bytes of a token's keys and values
    read = (10 + 11 + 12) * token + 3 * subject.weight_bytes() / DRY.streams
    expected = subject.prefill_operations(10) / 1e12 + read / 1e9
    assert least_seconds(subject, [(10, 3)]) == pytest.approx(expected, rel=1e-12)
