"""`bench.gpu` itself, where there is no GPU: it refuses, and with `--dry` it runs to the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.runner_suite import ROOT

pytest.importorskip("triton")


def run(env: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", *options]
    env = {name: value for name, value in env.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_it_refuses_without_a_gpu(subprocess_env: dict[str, str]) -> None:
    told = run({**subprocess_env, "CUDA_VISIBLE_DEVICES": ""})
    assert told.returncode == 2
    assert "measures a CUDA device, and there is none" in told.stderr


@pytest.mark.parametrize(
    "only", ["ceilings", pytest.param("", marks=pytest.mark.slow)], ids=["ceilings", "all"]
)
def test_a_dry_run_tells_its_figures(
    subprocess_env: dict[str, str], tmp_path: Path, only: str
) -> None:
    file = tmp_path / "gpu.json"
    env = {**subprocess_env, "CUDA_VISIBLE_DEVICES": ""}
    told = run(env, "--dry", "--json", str(file), "--only", only)
    assert told.returncode == 0, told.stderr
    report = json.loads(file.read_text())
    assert report["dry"]
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert figures["matrix product"]["value"] > 0
    if not only:
        assert len(figures) == 20
        assert all(figure["value"] >= 0 for figure in figures.values())
