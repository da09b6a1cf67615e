"""Alerts of engines and of latencies fire in real faults of a real engine, each alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.infra.loads import a_prompt, braked, load
from tests.infra.watching import SLOW, Fault, Prometheus, assert_fires_alone, running

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

BLOCKS = 24  # of KV, 64 tokens each
TOPOLOGY = f"""\
regions: [{{name: fra, iata: FRA}}]
pools:
  - {{name: all, region: fra, role: hybrid, model: "{MODEL}", runner: numba, threads: 1,
      kv_blocks: {BLOCKS}, file_tier: none}}
edges: [{{name: edge, region: fra}}]
"""
OTHER = f"""\
regions: [{{name: ams, iata: AMS}}]
pools: [{{name: toy, region: ams, role: hybrid, model: "{MODEL}", runner: toy, threads: 1}}]
"""
NODE = "fra-all-0"
RUNNING = f'vllm:num_requests_running{{instance="{NODE}"}}'
LOOK_SECONDS = 0.15  # for a node that has its interpreter


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("engine")
    skerry = new_home(parent, default_model)
    kernels = default_model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    (skerry.home / "cache").symlink_to(kernels)
    (parent / "topology.yaml").write_text(TOPOLOGY)
    (parent / "other.yaml").write_text(OTHER)
    with running(skerry, parent / "topology.yaml"):
        yield skerry


@pytest.fixture(scope="module")
def prometheus(skerry: Skerry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    longer = 'job="skerry-edge"}[6s]', 'job="skerry-edge"}[15s]'  # than engines stand still
    with watching(tmp_path_factory.mktemp("prometheus"), skerry, longer) as prometheus:
        yield prometheus


@pytest.fixture(scope="module")
def patient(skerry: Skerry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It minds no latencies, which what fills an engine raises, too; and a busy machine has fewer
    steps in which streams could be preempted."""
    fewer = ("num_preemptions_total[6s]) > 0.5", "num_preemptions_total[6s]) > 0.1")
    with watching(tmp_path_factory.mktemp("patient"), skerry, *SLOW, fewer) as prometheus:
        yield prometheus


@contextlib.contextmanager
def watching(folder: Path, skerry: Skerry, *changes: tuple[str, str]) -> Generator[Prometheus]:
    with Prometheus(folder, skerry, *changes) as prometheus:
        until(lambda: prometheus.up().get("skerry-node") == {NODE})
        yield prometheus


def node(skerry: Skerry, id: str = NODE) -> dict[str, Any]:
    """What is known of a node, whoever runs it."""
    status = skerry.status()
    nodes = [*status["nodes"], *status.get("control", {"nodes": []})["nodes"]]
    found: dict[str, Any] = next(each for each in nodes if each["id"] == id)
    return found


@contextlib.contextmanager
def brake(skerry: Skerry, hold: float, *, memory: float = 0.0) -> Generator[None]:
    """Have the engine stand still after each step, and leave the node its event loop.

    Only steps count after which streams hold this share of the memory.
    """
    path = node(skerry)["control"].removeprefix("unix:")
    transport = httpx.HTTPTransport(uds=path)
    with httpx.Client(transport=transport, timeout=LOOK_SECONDS) as client:

        def engine() -> dict[str, Any]:
            """Return its figures; none while the node has no interpreter to answer with."""
            try:
                [figures] = client.get("http://localhost/status").json()["engines"].values()
            except httpx.HTTPError:
                return {}
            return dict(figures)

        def steps() -> int | None:
            now = engine()
            counts = bool(now) and now["blocks_used"] / now["blocks"] >= memory
            return now["steps"] if counts else None

        with braked(node(skerry)["pid"], lambda: bool(engine()), steps, hold):
            yield


@contextlib.contextmanager
def slow_first_tokens(skerry: Skerry) -> Generator[None]:
    """The engine stands still for seconds, again and again; answers have one token."""
    with load(skerry, "edge", 6, a_prompt(8, 1), pause=0.4), brake(skerry, 2.4):
        yield


@contextlib.contextmanager
def slow_tokens(skerry: Skerry) -> Generator[None]:
    with load(skerry, "edge", 4, a_prompt(8, 100)), brake(skerry, 0.9):
        yield


@contextlib.contextmanager
def engine_that_hangs(skerry: Skerry) -> Generator[None]:
    with load(skerry, "edge", 2, a_prompt(8, 300)), brake(skerry, 60.0):
        yield


@contextlib.contextmanager
def queue_that_grows(skerry: Skerry) -> Generator[None]:
    """Some have taken a block each, and all that these might need."""
    with load(skerry, "edge", 40, a_prompt(8, 50)), brake(skerry, 0.9):
        yield


@contextlib.contextmanager
def memory_that_is_full(skerry: Skerry) -> Generator[None]:
    """Two streams have 22 of 24 blocks when their prompts are computed, and both others a few
    tokens later; from then on each step is slow, and they need no more for all their tokens."""
    with load(skerry, "edge", 2, a_prompt(696, 66)), brake(skerry, 0.9, memory=1.0):
        yield


@contextlib.contextmanager
def preemptions(skerry: Skerry) -> Generator[None]:
    """One tenant's streams have all there is; another comes, and is let in at once."""
    made = skerry("tokens", "create", "--name", "other", "--account", "new")
    [account] = re.findall(r"account ([0-9a-f]{32})", made.stderr)
    with (
        load(skerry, "edge", 6, a_prompt(100, 300)),
        load(skerry, "edge", 1, a_prompt(500, 1), tenant=(account, made.stdout.strip())),
    ):
        yield


@contextlib.contextmanager
def resumes_elsewhere(skerry: Skerry) -> Generator[None]:
    """Streams go on at a node that computes otherwise."""
    with load(skerry, "edge", 2, a_prompt(8, 400), x_skerry_mixed_builds="1"):
        until(lambda: node(skerry, "ams-toy-0")["streams"])
        os.kill(node(skerry, "ams-toy-0")["pid"], signal.SIGKILL)
        yield


@pytest.mark.parametrize(
    ("fault", "alert"),
    [(slow_first_tokens, "SkerrySlowFirstToken"), (slow_tokens, "SkerrySlowTokens")],
)
def test_an_alert_of_latencies_fires_alone(
    skerry: Skerry, prometheus: Prometheus, fault: Fault, alert: str
) -> None:
    assert_fires_alone(prometheus, skerry, fault, alert)
    until(lambda: prometheus.number(RUNNING) == 0)


@pytest.mark.parametrize(
    ("fault", "alert"),
    [
        (queue_that_grows, "SkerryQueueGrows"),
        (memory_that_is_full, "SkerryMemoryFull"),
        (preemptions, "SkerryPreemptions"),
        (engine_that_hangs, "SkerryEngineHangs"),
    ],
)
def test_an_alert_of_engines_fires_alone(
    skerry: Skerry, patient: Prometheus, fault: Fault, alert: str
) -> None:
    assert_fires_alone(patient, skerry, fault, alert)
    until(lambda: patient.number(RUNNING) == 0)


def test_the_alert_of_inexact_resumes_fires_alone(skerry: Skerry, patient: Prometheus) -> None:
    assert skerry("apply", "-f", str(skerry.home.parent / "other.yaml")).returncode == 0
    until(lambda: re.search(r"ams-toy-0 +ready", skerry("status").stdout))
    lost = {"SkerryHandoversLost"}  # KV that was on its way to the node
    assert_fires_alone(patient, skerry, resumes_elsewhere, "SkerryInexactResumes", lost)
    assert skerry("rollback").returncode == 0
