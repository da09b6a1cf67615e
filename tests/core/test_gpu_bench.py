"""`bench.gpu` itself, where there is no GPU: it refuses, and with `--dry` it runs to the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from bench import gpu


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
        assert len(figures) == 27
        assert all(figure["value"] >= 0 for figure in figures.values())
