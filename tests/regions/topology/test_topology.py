"""Topology files: what loads, what is refused and where the message points."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry_regions.models import located_yaml
from skerry_regions.spec_types import console_mode
from skerry_regions.topology.loading import TopologyError, load_topology, parse_topology
from skerry_regions.topology.spec import TopologyRegion, distance_km, distance_prior
from skerry_regions.view import LOCAL_LINK

EXAMPLES = Path(__file__).parents[3] / "examples"

GOOD = """\
regions:
  - {name: fra, iata: FRA, residency: eu}
  - {name: gru, coordinates: [-23.43, -46.47]}
pools:
  - name: prefill
    region: fra
    role: prefill
    model: m
    replicas: 2
  - name: decode
    region: fra
    role: decode
    model: m
edges:
  - {name: edge, region: gru, port: 8787}
links:
  - {between: [gru, fra], rtt: 0.196}
"""


def test_a_topology_is_read_with_its_defaults() -> None:
    topology = parse_topology(GOOD.encode())
    prefill, decode = topology.pools
    assert prefill.node_names() == ["fra-prefill-0", "fra-prefill-1"]
    assert (decode.runner, decode.replicas) == ("numba", 1)
    assert topology.region("fra").location == (50.03, 8.54)
    assert topology.region("gru").residency == "global"
    assert topology.edges[0].host == "127.0.0.1"


@pytest.mark.parametrize(
    ("written", "mode"),
    [("", "loopback"), (", console: off", "off"), (", console: on", "on"),
     (", console: 'on'", "on"), (", console: loopback", "loopback")],
)  # fmt: skip
def test_a_console_is_on_or_off_as_yaml_writes_it(written: str, mode: str) -> None:
    topology = parse_topology(GOOD.replace("port: 8787", f"port: 8787{written}").encode())
    assert console_mode(topology.edges[0].console) == mode


def test_examples_load() -> None:
    split = load_topology(EXAMPLES / "split.yaml")
    pools = [(pool.name, pool.role, pool.replicas) for pool in split.pools]
    assert pools == [("prefill", "prefill", 1), ("decode", "decode", 1), ("embed", "hybrid", 1)]
    three = load_topology(EXAMPLES / "three-regions.yaml")
    assert {edge.region for edge in three.edges} == {region.name for region in three.regions}
    priors = three.link_priors()
    assert [priors[pair].rtt for pair in (("fra", "iad"), ("iad", "nrt"), ("fra", "nrt"))] == [
        0.080,
        0.150,
        0.220,
    ]


def test_links_come_from_the_file_then_from_distance() -> None:
    priors = parse_topology(GOOD.encode()).link_priors()
    assert priors["fra", "gru"].rtt == 0.196
    assert priors["fra", "fra"] == LOCAL_LINK
    unwritten = parse_topology(
        GOOD.replace("rtt: 0.196", "bandwidth: 5_000_000").encode()
    ).link_priors()
    assert unwritten["fra", "gru"].rtt == pytest.approx(0.014 + 15.7e-6 * 9800, rel=0.02)
    assert unwritten["fra", "gru"].bandwidth == 5_000_000


def test_distance_is_that_of_a_great_circle() -> None:
    fra, nrt = TopologyRegion(name="fra", iata="FRA"), TopologyRegion(name="nrt", iata="NRT")
    assert distance_km(fra, nrt) == pytest.approx(9370, rel=0.01)  # published flight distance
    assert distance_km(fra, fra) == 0
    antipodes = (
        TopologyRegion(name="a", coordinates=(0, 0)),
        TopologyRegion(name="b", coordinates=(0, 180)),
    )
    assert distance_km(*antipodes) == pytest.approx(20_015, rel=0.001)
    assert distance_prior(0).rtt == 0.014


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("role: prefill", "role: both"), "t.yaml:7: pools[0].role: Invalid enum value 'both'"),
        (
            ("    region: fra\n    role: p", "    region: x\n    role: p"),
            "t.yaml:6: pools[0].region",
        ),
        (("iata: FRA", "iata: QQQ"), "t.yaml:2: regions[0].iata: airport 'QQQ' is not in our list"),
        ((", iata: FRA", ""), "t.yaml:2: regions[0]: region 'fra' needs `iata` or `coordinates`"),
        (("name: gru", "name: fra"), "t.yaml:3: regions[1].name: 'fra' is there twice"),
        (("role: decode", "role: prefill"), "t.yaml:7: pools[0].role: no pool decodes 'm'"),
        (("port: 8787", "port: 70000"), "t.yaml:15: edges[0].port: Expected `int` <= 65535"),
        (("replicas: 2", "replicas: two"), "t.yaml:9: pools[0].replicas: Expected `int`"),
        (("replicas: 2", "replica: 2"), "t.yaml:9: pools[0].replica: no such key"),
        (("replicas: 2", "model: n"), "t.yaml:9: pools[0].model: given twice"),
        (("[gru, fra]", "[gru, lhr]"), "t.yaml:17: links[0].between: there is no region 'lhr'"),
        (("rtt: 0.196", "rtt: -1"), "t.yaml:17: links[0].rtt: Expected `float` > 0"),
        (("rtt: 0.196}", "rtt: 0.196}\n  - {between: [fra, gru]}"), "t.yaml:18: links[1].between"),
        (("name: edge", "name: -e"), "t.yaml:15: edges[0].name: expected a name of"),
        (("[-23.43, -46.47]", "[-123, 0]"), "t.yaml:3: regions[1].coordinates[0]: Expected"),
        (("model: m", "model: [m"), "t.yaml:9: "),
        (("name: fra", "1: fra"), "t.yaml:2: regions[0]: keys must be strings"),
        (("residency: eu", "residency: EU"), "t.yaml:2: regions[0].residency: expected a name of"),
        (("links:", "emulate: {rtt: far}\nlinks:"), "t.yaml:16: emulate.rtt: Invalid enum value"),
        (("links:", "emulate: {rtts: links}\nlinks:"), "t.yaml:16: emulate.rtts: no such key"),
        (("links:", "emulate: {}\nlinks:"), "t.yaml:16: emulate: Object missing"),
        (("FRA", "&a FRA"), ""),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(change: tuple[str, str], message: str) -> None:
    text = GOOD.replace(*change, 1)
    assert text != GOOD
    if not message:
        assert parse_topology(text.encode()).regions == parse_topology(GOOD.encode()).regions
        return
    with pytest.raises(TopologyError) as caught:
        parse_topology(text.encode(), source="t.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "topology:1: Object missing required field `regions`"),
        (b"regions: []", "topology:1: regions: Expected `array` of length >= 1"),
        (b"regions: &x [1]\npools: *x", "topology:1: regions[0]: Expected `object`, got `int`"),
        (b"x: !!python/object:os.system 1", "topology:1: not valid YAML: could not"),
        (b"[" * 5000, "topology: nested too deeply"),
        (b"x: 2026-99-99", "topology: "),
        (b"\xff\xfe\x00", "topology: not valid YAML"),
        (b"\xc3\x28", "topology: not valid YAML"),
    ],
)
def test_hostile_documents_are_refused(text: bytes, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text)
    assert str(caught.value).startswith(message)


def test_node_names_stay_unique_where_hyphens_could_mix_them_up() -> None:
    with pytest.raises(TopologyError, match="a second node would be called 'a-b-b-0'"):
        parse_topology(
            b"regions: [{name: a-b, iata: FRA}, {name: a, iata: IAD}]\n"
            b"pools:\n"
            b" - {name: b, region: a-b, role: hybrid, model: m}\n"
            b" - {name: b-b, region: a, role: hybrid, model: m}\n"
        )


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"#" * (located_yaml.MAX_SIZE + 1))
    with pytest.raises(TopologyError, match="larger than"):
        load_topology(path)


@pytest.mark.parametrize("size", ["none", "512MiB", "1.5TiB"])
def test_a_pool_says_how_much_disk_its_nodes_take(size: str) -> None:
    text = GOOD.replace("    replicas: 2\n", f"    replicas: 2\n    file_tier: {size}\n")
    assert parse_topology(text.encode()).pools[0].file_tier == size


@pytest.mark.parametrize("size", ["4", "4GB", "-1GiB", "1e3MiB", "a lot"])
def test_a_size_without_its_unit_is_refused(size: str) -> None:
    text = GOOD.replace("    replicas: 2\n", f"    replicas: 2\n    file_tier: {size}\n")
    with pytest.raises(TopologyError, match=r":10: pools\[0\]\.file_tier: "):
        parse_topology(text.encode())


WARM = """\
warm_up:
  - model: m
    system_prompts: ["You are terse.", "You are kind."]
"""


def test_prompts_to_warm_up() -> None:
    [warm_up] = parse_topology((GOOD + WARM).encode()).warm_up
    assert (warm_up.model, warm_up.system_prompts[1]) == ("m", "You are kind.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model: m\n    system", "model: other\n    system"), r"no pool has the model 'other'"),
        (('["You are terse.", "You are kind."]', "[]"), "length >= 1"),
        (('"You are kind."', '""'), "length >= 1"),
        (('"You are kind."', "x" * 65_537), "length <= 65536"),
        (('["You are terse.", "You are kind."]', str(["x"] * 65)), "length <= 64"),
    ],
)
def test_prompts_to_warm_up_are_bounded(change: tuple[str, str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology((GOOD + WARM.replace(*change)).encode())
