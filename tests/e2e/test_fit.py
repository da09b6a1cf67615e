"""`skerry simulate --fit` of a platform that runs: its own counters become a scenario."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry, new_home

from skerry_regions.models.model_files import ModelFiles
from skerry_regions.twin.scenario import load_scenario
from skerry_regions.twin.traces import read_trace

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Skerry:
    return new_home(tmp_path, default_model)


def ask(skerry: Skerry, until: threading.Event) -> None:
    """Complete prompts of several lengths, two at a time."""
    config = json.loads((skerry.home / "config.json").read_text())
    headers = {"authorization": f"Bearer {config['api_token']}"}
    with httpx.Client(base_url=config["url"], headers=headers, trust_env=False) as client:
        number = 0
        while not until.is_set():
            number += 1
            prompt = [number % 1000 + 7, *range(100, 100 + 37 * (number % 9 + 1))]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 5 + number % 20}
            reply = client.post("/v1/completions", json=body | {"ignore_eos": True}, timeout=60)
            assert reply.status_code == 200, reply.text


def test_a_running_platform_is_calibrated(skerry: Skerry, tmp_path: Path) -> None:
    file = tmp_path / "seen.yaml"
    none = skerry("simulate", str(file), "--fit", "--seconds", "1")
    assert none.returncode == 1
    assert "not running" in none.stderr
    skerry.up()
    done = threading.Event()
    askers = [threading.Thread(target=ask, args=(skerry, done)) for _ in range(2)]
    try:
        for each in askers:
            each.start()
        fitted = skerry("simulate", str(file), "--fit", "--seconds", "30")
    finally:
        done.set()
        for each in askers:
            each.join()
        skerry("down")
    assert fitted.returncode == 0, fitted.stderr
    given = load_scenario(file)
    assert [(pool.role, pool.replicas) for pool in given.pools] == [("hybrid", 1)]
    law = given.pools[0].speed
    assert law.base > 0
    trace = read_trace(tmp_path / "seen.csv")
    assert len(trace.requests) > 20
    assert {len(each.blocks) - each.prompt_tokens // 64 for each in trace.requests} == {0}
    assert any(each.blocks for each in trace.requests)
    again = skerry("simulate", str(file), "--fit", "--seconds", "1")
    assert "exists" in again.stderr
