"""One model that is broken does not keep the others from being served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import Skerry
from tests.regions.tiny_model import write_openable

from skerry import Unavailable
from skerry_regions.models.catalog_edits import add_model
from skerry_regions.models.local_model import describe
from skerry_regions.models.store import ModelStore

WHOLE = "@cf/me/whole"
REASONS = {
    "@cf/me/cut": "a file of it is truncated",
    "@cf/me/gone": "its files are gone",
    "@cf/me/other": "its architecture or format is not supported",
}
TOPOLOGY = """
regions: [{name: here, iata: FRA}]
pools:
  - {name: whole, region: here, role: hybrid, model: "@cf/me/whole", runner: toy}
  - {name: cut, region: here, role: hybrid, model: "@cf/me/cut", runner: toy}
  - {name: other, region: here, role: hybrid, model: "@cf/me/other", runner: toy}
  - {name: gone, region: here, role: hybrid, model: "@cf/me/gone", runner: toy}
edges: [{name: edge, region: here, port: 0}]
"""


@pytest.fixture
def skerry(tmp_path: Path) -> Iterator[Skerry]:
    """A home with four models: one whole, one truncated, one deleted and one that was added by a
    version that did not look into it, of another architecture."""
    skerry = Skerry(tmp_path / "home")
    skerry.home.mkdir(mode=0o700)
    files = {
        name: write_openable(tmp_path / f"{name}.gguf", "mamba2" if name == "other" else "llama")
        for name in ("whole", "cut", "gone", "other")
    }
    store = ModelStore(skerry.home)
    for name, path in files.items():
        spec = describe(path, f"@cf/me/{name}")
        store.pull(spec, lambda what, share: None)
        add_model(skerry.home, spec)
    with files["cut"].open("r+b") as file:
        file.truncate(1000)
    files["gone"].unlink()
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def check(skerry: Skerry, printed: str) -> None:
    """What is left out is said everywhere, and the other answers."""
    told = json.loads(printed)["left_out"]
    assert sorted(told) == [f"{model}: {reason}" for model, reason in sorted(REASONS.items())]
    status: dict[str, Any] = skerry.status()
    assert {each["model"]: each["reason"] for each in status["left_out"]} == REASONS
    assert {node["model"] for node in status["nodes"]} == {WHOLE}
    shown = skerry("status").stderr
    assert "general.architecture 'mamba2' is not supported" in shown
    assert "gone.gguf is missing" in shown
    ready = httpx.get(f"{status['url']}/readyz", trust_env=False)
    assert ready.status_code == 200
    left_out = [{"model": model, "reason": reason} for model, reason in sorted(REASONS.items())]
    assert ready.json() == {"status": "ready", "models": [WHOLE], "left_out": left_out}
    with skerry.ai() as ai:
        assert ai.run(WHOLE, {"prompt": "ab", "max_tokens": 3}).usage.completion_tokens == 3
        with pytest.raises(Unavailable, match="a file of it is truncated"):
            ai.run("@cf/me/cut", {"prompt": "ab"})


def test_up_serves_the_others(skerry: Skerry) -> None:
    names = [f"--model={model}" for model in (WHOLE, *REASONS)]
    check(skerry, skerry.up(*names))


@pytest.mark.slow
def test_a_topology_serves_the_others(skerry: Skerry, tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(topology))
    assert done.returncode == 0, done.stderr
    check(skerry, done.stdout)


def test_with_nothing_left_up_says_why(skerry: Skerry) -> None:
    done = skerry("up", "--port", "0", "--runner", "toy", "--model=@cf/me/cut")
    assert done.returncode == 1
    assert "no model can be served" in done.stderr
    assert "cut.gguf is truncated: 1,000 of" in done.stderr
    assert "skerry models remove @cf/me/cut" in done.stderr
    assert json.loads(skerry("status", "--json").stdout)["url"] == ""


def test_what_a_start_is_told_is_no_fault_of_the_model(skerry: Skerry) -> None:
    done = skerry("up", "--port", "0", "--runner", "toy", "--weights", "int4", f"--model={WHOLE}")
    assert done.returncode == 1
    why = "it cannot be opened with these settings: --weights int4 is not of the toy runner"
    assert f"{WHOLE} is left out, because {why}" in done.stderr
