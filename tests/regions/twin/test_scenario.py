"""Scenarios, traces and their mistakes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tests.regions.twin.worlds import scenario

from skerry_regions.digests import prefix_chain
from skerry_regions.twin.compare import changed, variants
from skerry_regions.twin.scenario import (
    ScenarioError,
    SimulatedTraffic,
    WhatIf,
    load_scenario,
    node_names,
)
from skerry_regions.twin.traces import TraceError, read_trace
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.workload import drawn, of_trace, workload_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "three-continents.yaml"


def test_the_example_is_a_scenario_and_each_difference_is_one_thing() -> None:
    given = load_scenario(EXAMPLE)
    assert node_names(given)[0] == "iad-gpu-0"
    names = [each.name for each in variants(given)]
    assert names == ["three regions", *(each.name for each in given.what_if)]
    assert {each.router.placement for each in variants(given)} == {"cost", "nearest"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    region: nrt\n", "    region: mars\n", "there is no region 'mars'"),
        ("node: fra-gpu-0", "node: fra-gpu-9", "there is no node 'fra-gpu-9'"),
        ("    rate: 40 ", "    trace: x\n    rate: 40 ", "either `trace` or `rate`"),
        ("    replicas: 8\n", "    rolle: hybrid\n", "rolle"),
    ],
)
def test_a_mistake_is_reported_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(EXAMPLE.read_text().replace(old, new))
    with pytest.raises(ScenarioError, match=message) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}:")


def test_a_difference_changes_adds_and_removes() -> None:
    what_if = WhatIf(
        name="other",
        change={"pools.p.replicas": 7, "router.placement": "nearest"},
        add={"regions": [{"name": "b"}]},
    )
    other = changed(scenario(), what_if, "what_if[0]")
    assert (other.name, other.pools[0].replicas, other.names) == ("other", 7, ["a", "b"])
    for bad, message in (
        (WhatIf(name="x", change={"pools.q.replicas": 1}), "there is no 'q'"),
        (WhatIf(name="x", remove=["regions.a"]), "regions"),
        (WhatIf(name="x", change={"pools.p.replicas": "many"}), "replicas|int"),
        (WhatIf(name="x", add={"router": [1]}), "no list"),
    ):
        with pytest.raises(ScenarioError, match=message):
            changed(scenario(), bad, "what_if[0]")


def test_loss_bounds_a_connection_as_mathis_et_al_say() -> None:
    from tests.regions.twin.worlds import three_regions

    from skerry_regions.twin.scenario import SimulatedLink

    links = [SimulatedLink(between=("a", "b"), rtt=0.1, bandwidth=1e9, loss=0.01)]
    ways = ways_of(three_regions(links=links), Path())
    assert ways.bandwidths[0, 1] == ways.bandwidths[1, 0] == pytest.approx(1.22 * 1460 / 0.01)
    assert ways.rtts[0, 1] == 0.1


def test_an_rtt_matrix_is_read_in_milliseconds(tmp_path: Path) -> None:
    from tests.regions.twin.worlds import three_regions

    (tmp_path / "rtt.csv").write_text("from,a,b,c\na,0,80,200\nb,81,0,120\nc,201,121,0\n")
    ways = ways_of(three_regions(links=[], rtt_matrix="rtt.csv"), tmp_path)
    assert (ways.rtts[0, 1], ways.rtts[1, 0], ways.rtts[2, 0]) == (0.080, 0.081, 0.201)
    (tmp_path / "rtt.csv").write_text("from,a,b\na,0,80\nb,81,0\n")
    with pytest.raises(ValueError, match="no round trip from a to c"):
        ways_of(three_regions(links=[], rtt_matrix="rtt.csv"), tmp_path)


MOONCAKE = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]}


CHAINED = "Timestamp,Request tokens,Response tokens,Chain\n"


def test_traces_are_known_by_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = [json.dumps(MOONCAKE | {"timestamp": 1000}), json.dumps(MOONCAKE)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    trace = read_trace(path)
    assert trace.block_size == 512
    assert [request.arrival for request in trace.requests] == [0.0, 2.0]
    assert len(trace.requests[0].blocks) == 2  # a part of a block is not shareable
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,87,0,87,Conversation log\n"
        "118,GPT-4,417,276,693,Conversation log\n"
    )
    assert [r.arrival for r in read_trace(path).requests] == [0.0, 113.0]  # the failed one is out
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    assert read_trace(path).requests[0].prompt_tokens == 374


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", ":1: columns"),
        ('{"timestamp": 1}\n', ":1: not a request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,0,4\n", ":2: 0 tokens"),
        (CHAINED + "5,100,7,00ff\n", ":2: a prompt of 100 tokens has no chain of 2 bytes"),
        (CHAINED + f"5,130,7,{bytes(24).hex()}\n", ":2: a prompt of 130 tokens has no chain of 24"),
        (CHAINED + "5,130,7,none\n", ":2: non-hexadecimal"),
        ("", "columns"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_sessions_stay_in_their_region(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        MOONCAKE
        | {"timestamp": t, "input_length": 512 * n, "hash_ids": list(range(s * 100, s * 100 + n))}
        for s in range(40) for t, n in ((s, 3), (1000 + s, 4), (2000 + s, 5))
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    traffic = SimulatedTraffic(regions={"a": 1.0, "b": 1.0}, trace="t")
    workload = of_trace(read_trace(path), traffic, ["a", "b"], seed=1)
    by_turn = workload.regions.reshape(3, 40)
    assert (by_turn == by_turn[0]).all()
    assert 5 < by_turn[0].sum() < 35


def test_a_chain_has_a_name_for_each_block(tmp_path: Path) -> None:
    """Of 19 shared blocks, 18 are known to be; a block of the scenario may be several."""
    one = list(range(40 * 64))
    other = one[: 19 * 64] + [7] * (21 * 64)
    chains = [prefix_chain("m", b"key", ids).hex() for ids in (one, other)]
    path = tmp_path / "seen.csv"
    path.write_text(CHAINED + "".join(f"{at},2570,9,{chain}\n" for at, chain in enumerate(chains)))
    traffic = SimulatedTraffic(regions={"a": 1.0}, trace=path.name)
    for per_block in (1, 2, 4):
        given = scenario(block_size=64 * per_block, traffic=[traffic])
        workload = workload_of(given, tmp_path)
        assert workload.blocks.tolist() == [40 // per_block] * 2
        first, second = workload.names.reshape(2, -1).tolist()
        shared = 18 // per_block
        assert first[:shared] == second[:shared]
        assert len({*first, *second}) == 2 * 40 // per_block - shared
    with pytest.raises(ScenarioError, match="set `block_size: 64`, or a multiple of it"):
        workload_of(scenario(block_size=96, traffic=[traffic]), tmp_path)


def test_drawn_requests_follow_the_day_and_the_popularity() -> None:
    traffic = SimulatedTraffic(
        regions={"a": 1.0}, rate=2.0, seconds=86_400.0, day_swing=0.8, noon=12.0, prefixes=50,
        prefix_tokens=640, prompt_tokens=50,
    )  # fmt: skip
    workload = drawn(traffic, ["a"], 64, seed=3)
    assert len(workload) == pytest.approx(2 * 86_400, rel=0.03)
    counts = np.histogram(workload.arrivals, bins=24, range=(0, 86_400))[0]
    assert counts[12] / counts[0] == pytest.approx(1.8 / 0.2, rel=0.25)
    firsts = workload.names[workload.firsts]
    most = np.sort(np.unique(firsts, return_counts=True)[1])[::-1]
    assert len(most) == 50
    assert most[0] / most[9] == pytest.approx(10, rel=0.2)  # Zipf's law
