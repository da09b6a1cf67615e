"""`bench.serving.attacks`: what it computes, what its attackers send, and a short run of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.measuring.stats import Cell
from bench.serving.attacks import ATTACKED, KINDS, PEER, Outcome, line
from bench.workers.attacker import Attacker, body_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.attacks.test_connections import LIMITS
from tests.conftest import ROOT
from tests.edge.serving import serving

from skerry_regions.models.model_files import ModelFiles


def outcome(attacked: float, *, health: float = 20.0, growth: int = 0) -> Outcome:
    cell = Cell("prompts", "ms")
    for number in range(300):
        cell.add(ATTACKED, attacked if number >= 290 else 1.0)
        cell.add(PEER, 10.0 if number >= 290 else 5.0)
    return Outcome("prompts", cell, {ATTACKED: [1.0, health], PEER: [2.0]}, growth, {"400": 7}, 3)


def test_what_is_wanted_of_an_attack() -> None:
    assert outcome(15.0).ratio == 1.5
    assert outcome(15.0).is_held
    assert not outcome(15.1).is_held
    assert not outcome(1.0, health=100.1).is_held
    assert not outcome(1.0, growth=(512 << 20) + 1).is_held
    assert "p99   15.0 /   10.0 ms = 1.50, healthz <= 20 / 2 ms" in line(outcome(15.0))
    assert outcome(15.0).report()["attacker"] == {"statuses": {"400": 7}, "tokens": 3}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"connections"}))
def test_attackers_send_requests(kind: str) -> None:
    body = body_of(kind, "m", "foreign", 3)
    assert isinstance(json.loads(body), dict)
    assert len(body) < 8 << 20, "an edge would not read it"
    if kind not in ("bodies", "templates"):
        assert body != body_of(kind, "m", "foreign", 4)


async def completion(request: Request) -> JSONResponse:
    asked = await request.json()
    return JSONResponse({"usage": {"completion_tokens": asked["max_tokens"]}})


def test_a_neighbour_buys_as_many_tokens_as_it_is_told() -> None:
    with serving(Starlette(routes=[Route("/x", completion, methods=["POST"])]), LIMITS) as port:
        neighbour = Attacker(f"http://127.0.0.1:{port}/x", "t", "m", "f")
        asyncio.run(neighbour.work("neighbour", 0.1, requests=4, tokens=64))
        assert (neighbour.tokens, dict(neighbour.statuses)) == (64, {"200": 4})
        loud = Attacker(f"http://127.0.0.1:{port}/x", "t", "m", "f")
        asyncio.run(loud.work("connections", 0.1))
        assert loud.statuses["connected"] > 0


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
def test_a_quick_run(
    tmp_path: Path, default_model: ModelFiles, subprocess_env: dict[str, str]
) -> None:
    report = tmp_path / "attacks.json"
    command = [sys.executable, "-m", "bench.serving.attacks", "--quick", "--json", str(report)]
    env = subprocess_env | {"SKERRY_HOME": str(default_model.directory.parents[1])}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: not held, as on a busy machine
    attacks = {each["kind"]: each for each in json.loads(report.read_text())["attacks"]}
    assert attacks.keys() == set(KINDS)
    for kind, attack in attacks.items():
        assert attack["attacker"]["statuses"], kind
        assert attack["healthz_ms"].keys() == {ATTACKED, PEER}
