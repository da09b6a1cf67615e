"""A real Prometheus finds a platform of three regions by itself, and every panel has data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator

import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.infra.loads import a_prompt, edge_url, load
from tests.infra.test_monitoring import NAME, panels, rules
from tests.infra.watching import SLOW, Prometheus, running
from websockets.sync.client import connect

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

POOL = f'model: "{MODEL}", runner: toy, threads: 1'
TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
  - {{name: gru, iata: GRU}}
pools:
  - {{name: prefill, region: fra, role: prefill, {POOL}}}
  - {{name: decode, region: fra, role: decode, replicas: 2, {POOL}}}
  - {{name: all, region: iad, role: hybrid, {POOL}}}
  - {{name: all, region: gru, role: hybrid, {POOL}}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
  - {{name: edge-gru, region: gru}}
"""
LAUNCHED = f"""\
regions: [{{name: ams, iata: AMS}}]
pools: [{{name: own, region: ams, role: hybrid, file_tier: none, {POOL}}}]
"""
TARGETS = {
    "skerry-control": {"control"},
    "skerry-edge": {"edge-fra-0", "edge-iad-0", "edge-gru-0"},
    "skerry-node": {
        "fra-prefill-0", "fra-decode-0", "fra-decode-1", "iad-all-0", "gru-all-0", "ams-own-0",
    },
}  # fmt: skip


NO_SERIES_IN_HEALTH = {
    "skerry_control_crash_loops", "skerry_control_models_asleep",
    "skerry_certificate_end_timestamp_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("watched")
    skerry = new_home(parent, default_model)
    for name, text in (("topology", TOPOLOGY), ("own", LAUNCHED)):
        (parent / f"{name}.yaml").write_text(text)
    with running(skerry, parent / "topology.yaml"):
        applied = skerry("apply", "-f", str(parent / "own.yaml"))
        assert applied.returncode == 0, applied.stderr
        yield skerry


@pytest.fixture(scope="module")
def prometheus(skerry: Skerry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus"), skerry, *SLOW) as prometheus:
        yield prometheus


@contextlib.contextmanager
def busy(skerry: Skerry) -> Generator[None]:
    """Streams at every edge, some of which go over two nodes, requests that are refused, and a
    WebSocket that was closed."""
    open_and_close_a_socket(skerry, "edge-fra")
    with contextlib.ExitStack() as stack:
        for edge in ("edge-fra", "edge-iad", "edge-gru"):
            stack.enter_context(load(skerry, edge, 3, a_prompt(1800, 200)))
        stack.enter_context(
            load(skerry, "edge-fra", 1, a_prompt(8, 1), model="@cf/no/such", pause=15.0)
        )
        yield


def open_and_close_a_socket(skerry: Skerry, edge: str) -> None:
    config = json.loads((skerry.home / "config.json").read_text())
    url = edge_url(skerry, edge).replace("http:", "ws:")
    path = f"/client/v4/accounts/{config['account_id']}/ai/v1/responses"
    own = {"authorization": f"Bearer {config['api_token']}"}
    with connect(url + path, additional_headers=own, proxy=None):
        pass


def without_data(prometheus: Prometheus) -> list[str]:
    """Return what of the dashboard is empty."""
    asked = {target["expr"]: panel["title"] for panel in panels() for target in panel["targets"]}
    return [
        f"{title}: {expression}"
        for expression, title in asked.items()
        if not prometheus.series(expression)
    ]


def test_every_panel_has_data_and_all_is_well(skerry: Skerry, prometheus: Prometheus) -> None:
    until(lambda: prometheus.up() == TARGETS)
    with busy(skerry):
        until(lambda: without_data(prometheus) == [])
        assert prometheus.firing() == set()
        asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}
        for name in asked - NO_SERIES_IN_HEALTH:
            assert name.startswith("skerry_dns_") or prometheus.series(name), name
