"""Alerts of what lies between edges and nodes fire in real faults, each alone."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.infra.loads import a_prompt, load
from tests.infra.watching import SLOW, Fault, Prometheus, assert_fires_alone, running

from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.launch_folder import LaunchFolder

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

POOL = f'model: "{MODEL}", runner: toy, threads: 1, file_tier: none'
TOPOLOGY = f"""\
regions: [{{name: fra, iata: FRA}}, {{name: iad, iata: IAD}}]
pools:
  - {{name: prefill, region: fra, role: prefill, {POOL}}}
  - {{name: decode, region: fra, role: decode, replicas: 2, {POOL}}}
edges: [{{name: edge, region: iad}}]
links: [{{between: [fra, iad], rtt: 0.02}}]
emulate: {{rtt: links}}
"""
NODES = {"fra-prefill-0", "fra-decode-0", "fra-decode-1"}


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("routes")
    (parent / "topology.yaml").write_text(TOPOLOGY)
    skerry = new_home(parent, default_model)
    with running(skerry, parent / "topology.yaml"):
        yield skerry


@pytest.fixture(scope="module")
def prometheus(skerry: Skerry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus"), skerry, *SLOW) as prometheus:
        until(lambda: prometheus.up().get("skerry-node") == NODES)
        yield prometheus


def relays(skerry: Skerry) -> int:
    """The process that holds back what goes from region to region."""
    folder = LaunchFolder.of_control(skerry.home)
    return {record.id: pid for record, pid in folder.running()}["~relays-0"]


@contextlib.contextmanager
def nothing_passes(skerry: Skerry) -> Generator[None]:
    """Between the edge and all nodes of its model."""
    between = relays(skerry)
    os.kill(between, signal.SIGSTOP)
    yield
    os.kill(between, signal.SIGCONT)


@contextlib.contextmanager
def all_are_far(skerry: Skerry) -> Generator[None]:
    """What is between the regions takes longer: the relays follow their file."""
    words = Path(f"/proc/{relays(skerry)}/cmdline").read_text().split("\0")
    file = Path(next(word for word in words if word.endswith(".relays")))
    text = file.read_text()
    assert '["fra","iad",0.02]' in text
    file.write_text(text.replace('["fra","iad",0.02]', '["fra","iad",0.7]'))
    yield
    file.write_text(text)


@contextlib.contextmanager
def node_dies_under_streams(skerry: Skerry) -> Generator[None]:
    with load(skerry, "edge", 40, a_prompt(8, 80)):
        until(lambda: busiest(skerry)[0] > 15)
        os.kill(busiest(skerry)[1], signal.SIGKILL)
        yield


def busiest(skerry: Skerry) -> tuple[int, int]:
    """The streams, and the process, of the node that has most."""
    return max((each["streams"], each["pid"]) for each in skerry.status()["nodes"])


@contextlib.contextmanager
def kv_that_does_not_arrive(skerry: Skerry) -> Generator[None]:
    """No decode node is found where it takes KV."""
    controls = [each["control"] for each in skerry.status()["nodes"] if each["role"] == "decode"]
    found = [Path(each.removeprefix("unix:")).with_suffix(".kv") for each in controls]
    for path in found:
        path.rename(path.with_suffix(".away"))
    with load(skerry, "edge", 6, a_prompt(1500, 60)):
        yield
    for path in found:
        path.with_suffix(".away").rename(path)


@pytest.mark.parametrize(
    ("fault", "alert", "also"),
    [
        (nothing_passes, "SkerryModelWithoutNodes", set()),
        (all_are_far, "SkerryNodeFar", set()),
        (node_dies_under_streams, "SkerryResumes", set()),
        # A stream whose KV is lost goes on without it.
        (kv_that_does_not_arrive, "SkerryHandoversLost", {"SkerryResumes"}),
    ],
)
def test_an_alert_fires_in_its_fault_and_no_other_does(
    skerry: Skerry, prometheus: Prometheus, fault: Fault, alert: str, also: set[str]
) -> None:
    assert_fires_alone(prometheus, skerry, fault, alert, also)
    until(lambda: prometheus.up().get("skerry-node") == NODES)
