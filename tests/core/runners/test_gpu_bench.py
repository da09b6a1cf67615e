"""`bench.gpu` itself, where there is no GPU: it refuses, and with `--dry` it runs to the end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from bench import gpu
from bench.device.gpu_checks import MOST_DISTANCE, Answers, answers, check_moved
from bench.device.gpu_sizes import TINY
from bench.device.random_weights import random_weights

from skerry_core.runners.torch.torch_runner import TorchRunner

pytestmark = pytest.mark.triton


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_it_refuses_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "measures a CUDA device, and there is none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "only", ["ceilings", pytest.param("", marks=pytest.mark.slow)], ids=["ceilings", "all"]
)
def test_a_dry_run_tells_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], only: str
) -> None:
    file = tmp_path / "gpu.json"
    assert gpu.main(["--dry", "--json", str(file), "--only", only]) == 0, capsys.readouterr().err
    report = json.loads(file.read_text())
    assert report["dry"]
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert figures["matrix product"]["value"] > 0
    if not only:
        assert len(figures) == 34
        assert all(figure["value"] >= 0 for figure in figures.values())


def test_wrong_answers_are_told_from_right_ones() -> None:
    weights = random_weights(TINY, torch.device("cpu"), torch.float32)
    runner = TorchRunner(TINY, weights, num_blocks=4)
    told = answers(runner, 70)
    assert told.distance(told) == 0
    assert told.distance(Answers(told.prefill, told.decode[::-1])) > MOST_DISTANCE
    check_moved(runner, 70, told.decode)
    wrong = told.decode.copy()
    wrong[5] = np.nextafter(wrong[5], np.float32(np.inf))
    with pytest.raises(RuntimeError, match="after KV was moved, 1 logits are others"):
        check_moved(runner, 70, wrong)
