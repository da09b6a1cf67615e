"""`skerry simulate`, from a file to its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.regions.twin.worlds import CACHE

from skerry_cli import main

SMALL = """\
regions: [{name: iad, edges: 2}]
pools:
  - name: gpu
    region: iad
    replicas: 2
    node_hour: 2.0
    speed: {base: 0.01, per_token: 1.0e-4, per_stream: 3.0e-4}
traffic: [{regions: {iad: 1}, rate: 5, seconds: 60, prompt_tokens: 200, output_tokens: 20}]
what_if: [{name: one node more, change: {pools.0.replicas: 3}}]
"""


def test_a_mistake_is_reported_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("replicas: 2", "replicas: two"))
    assert main(["simulate", str(file)]) == 1
    assert f"{file}:5: pools[0].replicas: " in capsys.readouterr().err
    assert main(["simulate", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml: No such file" in capsys.readouterr().err
    figures = tmp_path / "none" / "figures.json"
    assert main(["simulate", str(file), "--json", str(figures)]) == 1
    told = capsys.readouterr().err
    assert told == f"skerry: --json {figures}: there is no folder {figures.parent}.\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_scenario_and_its_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    CACHE.mkdir(exist_ok=True)
    (tmp_path / "home" / "cache").symlink_to(CACHE)
    (tmp_path / "small.yaml").write_text(SMALL)
    figures = tmp_path / "figures.json"
    asked = ["simulate", str(tmp_path / "small.yaml"), "--seeds", "2", "--json", str(figures)]
    assert main(asked) == 0
    heading, base, more = capsys.readouterr().out.splitlines()
    assert heading.startswith("SCENARIO")
    assert base.count("±") > 5
    assert more.startswith("one node more")
    listed = json.loads(figures.read_bytes())["scenarios"]
    runs = [run for each in listed for run in each["runs"]]
    assert [run["failed"] for run in runs] == [0] * 4
    assert [run["requests"] for run in runs[:2]] == [run["requests"] for run in runs[2:]]
    # Each second of a node costs as much whether it is busy or not.
    assert all(run["cost"] == pytest.approx(2.0 * run["node_hours"]) for run in runs)
    assert runs[2]["node_hours"] > 1.3 * runs[0]["node_hours"]
