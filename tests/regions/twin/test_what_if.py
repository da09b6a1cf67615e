"""What `skerry simulate` answers: a third region, another split, another price."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.twin.worlds import load_kernels

from skerry_regions.twin.compare import simulate, variants
from skerry_regions.twin.figures import Figures
from skerry_regions.twin.scenario import load_scenario

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SPEED = (
    "{base: 0.010, per_token: 1.25e-4, per_pair: 1.9e-9, per_stream: 3.0e-4, chunk_tokens: 2048}"
)
HERE = "{name: a, edges: 2, rtt: 0.001}"


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    load_kernels()


def answers(tmp_path: Path, text: str) -> list[Figures]:
    """Figures of a scenario and each of its differences."""
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return [simulate(each, tmp_path)[0] for each in variants(load_scenario(path))]


def test_nodes_in_a_third_region_save_its_clients_the_way(tmp_path: Path) -> None:
    two, three = answers(tmp_path, f"""\
regions: [{HERE}, {{name: b}}, {{name: c}}]
pools:
  - {{name: p, region: a, replicas: 4, node_hour: 2.0, speed: {SPEED}}}
  - {{name: p, region: b, replicas: 4, node_hour: 2.0, speed: {SPEED}}}
links:
  - {{between: [a, b], rtt: 0.1}}
  - {{between: [a, c], rtt: 0.3}}
  - {{between: [b, c], rtt: 0.4}}
traffic: [{{regions: {{a: 1, b: 1, c: 1}}, rate: 6, seconds: 120, prompt_tokens: 400}}]
what_if:
  - name: nodes in c
    add: {{pools: [{{name: p, region: c, replicas: 2, node_hour: 2.0, speed: {SPEED}}}]}}
""")  # fmt: skip
    assert two.crossed_share == pytest.approx(1 / 3, abs=0.05)  # all of c's clients
    assert three.crossed_share < 0.1  # bursts go where there is room
    # A third of the requests crossed 0.3 s; they take as long as the others now.
    assert two.ttft_mean - three.ttft_mean == pytest.approx(0.3 / 3, rel=0.25)
    assert three.cost == pytest.approx(two.cost * 10 / 8, rel=0.03)


def test_another_split_moves_the_wait_from_first_tokens_to_the_others(tmp_path: Path) -> None:
    one, three = answers(tmp_path, f"""\
regions: [{HERE}]
pools:
  - {{name: p, region: a, role: prefill, replicas: 1, speed: {SPEED}}}
  - {{name: d, region: a, role: decode, replicas: 3, speed: {SPEED}}}
router: {{split: false}}
traffic:
  - {{regions: {{a: 1}}, rate: 1.6, seconds: 300, prompt_tokens: 4000, output_tokens: 400}}
what_if:
  - {{name: 3 + 1, change: {{pools.p.replicas: 3, pools.d.replicas: 1}}}}
""")  # fmt: skip
    assert three.ttft_p95 < 0.85 * one.ttft_p95
    assert three.itl_p50 > one.itl_p50  # one node has all streams
    assert one.requests == three.requests
    assert one.node_hours == pytest.approx(three.node_hours, rel=0.1)


def test_another_price_changes_the_bill_and_nothing_else(tmp_path: Path) -> None:
    cheap, dear, carried = answers(tmp_path, f"""\
regions: [{HERE}, {{name: b}}]
pools: [{{name: p, region: a, replicas: 2, node_hour: 2.0, speed: {SPEED}}}]
links: [{{between: [a, b], rtt: 0.1}}]
traffic: [{{regions: {{a: 1, b: 1}}, rate: 4, seconds: 60, prompt_tokens: 500}}]
what_if:
  - {{name: nodes for twice as much, change: {{pools.p.node_hour: 4.0}}}}
  - {{name: bytes for a price, change: {{links.0.gigabyte: 1000.0}}}}
""")  # fmt: skip
    assert cheap.cost == pytest.approx(2.0 * cheap.node_hours)
    assert dear.cost == pytest.approx(4.0 * dear.node_hours)
    assert (dear.ttft_mean, dear.e2e_p99) == (cheap.ttft_mean, cheap.e2e_p99)
    # Half of the prompts crossed, in four bytes a token.
    half = 4 * 60 * 0.5 * 500 * 4 / 1e9 * 1000.0
    assert carried.cost - cheap.cost == pytest.approx(half, rel=0.3)
    assert carried.ttft_mean == cheap.ttft_mean
