"""DNS zones and their records: what may be written, what servers are told, what is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.regions.control.support import Api

from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.manifest import ManifestError, parse_manifest
from skerry_regions.control.desired.resources import EDGE_NODE
from skerry_regions.control.desired.store import EDGE_PORT
from skerry_regions.control.dns.specs import MAX_RECORDS, MAX_VALUES
from skerry_regions.topology.loading import decode_topology
from skerry_regions.topology.spec import Topology

pytestmark = pytest.mark.anyio

NETS = [
    {"net": "198.51.100.0/24", "region": "fra"},
    {"net": "203.0.113.0/24", "coordinates": [40.7, -74.0], "residency": "us"},
]
ZONE: dict[str, Any] = {
    "name": "example.test",
    "nameservers": [{"name": "ns1", "addresses": ["192.0.2.53"]}],
    "nets": NETS,
}
WWW: dict[str, Any] = {
    "zone": "example.test", "name": "www", "type": "A", "ttl": 60,
    "values": ["192.0.2.80", "192.0.2.81"],
}  # fmt: skip


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """With two regions and an edge in each."""
    api = Api(tmp_path)
    await api.make("regions", name="fra", iata="FRA", residency="eu")
    await api.make("regions", name="iad", iata="IAD", residency="us")
    await api.make("edge_nodes", name="a", region="fra", addresses=["192.0.2.1", "2001:db8::1"])
    await api.make("edge_nodes", name="b", region="iad", addresses=["192.0.2.2"], port=8787)
    yield api
    await api.close()


async def contents(api: Api) -> Topology:
    answer = await api.http.get("/dns_zones/example.test/contents")
    assert answer.status_code == 200, answer.text
    return decode_topology(answer.content)


async def ask(api: Api, name: str, rdtype: str = "A", client: str = "") -> dict[str, Any]:
    query = {"name": name, "type": rdtype, "client": client}
    answer = await api.http.get("/dns_answer", params=query)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def test_they_are_read_back_and_go_at_once(api: Api) -> None:
    zone = await api.make("dns_zones", **ZONE)
    assert (zone["id"], zone["names"], zone["contact"]) == ("example.test", ["ai"], "hostmaster")
    record = await api.make("dns_records", **WWW)
    assert record["id"] == "example.test:www:A"
    path = f"/dns_records/{record['id']}"
    assert (await api.http.get(path)).json() == record
    changed = await api.http.patch(
        path, json={"values": ["192.0.2.82"]}, headers={"if-match": record["meta"]["etag"]}
    )
    assert (changed.status_code, changed.json()["values"]) == (200, ["192.0.2.82"])
    stale = await api.http.patch(
        path, json={"ttl": 5}, headers={"if-match": record["meta"]["etag"]}
    )
    assert stale.status_code == 412
    used = await api.http.delete("/dns_zones/example.test")
    assert (used.status_code, used.json()["error"]["type"]) == (409, "conflict")
    assert "dns_record 'example.test:www:A'" in used.json()["error"]["message"]
    used = await api.http.delete("/regions/fra")
    assert "dns_zone 'example.test'" in used.json()["error"]["message"]
    for gone in (path, "/dns_zones/example.test"):
        assert (await api.http.delete(gone)).status_code == 204
        assert (await api.http.get(gone)).status_code == 404
    await api.make("dns_zones", **ZONE)  # nothing of it is left


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("dns_zones", ZONE | {"name": "Example.test"}, "name"),
    ("dns_zones", ZONE | {"name": "other.test."}, "name"),
    ("dns_zones", ZONE | {"name": "o.test", "nameservers": []}, "nameservers"),
    (
        "dns_zones",
        ZONE | {"name": "o.test", "nameservers": [{"name": "ns", "addresses": ["1.2.3"]}]},
        "nameservers[0].addresses[0]",
    ),
    ("dns_zones", ZONE | {"name": "o.test", "nets": [{"net": "192.0.2.1/24"}]}, "nets[0].net"),
    ("dns_zones", ZONE | {"name": "o.test", "nets": [{"net": "192.0.2.0/24"}]}, "nets[0]"),
    (
        "dns_zones",
        ZONE | {"name": "o.test", "nets": [NETS[0], {"net": "::/0", "region": "nrt"}]},
        "nets[1].region",
    ),
    (
        "dns_zones",
        ZONE | {"name": "o.test", "nets": [NETS[0] | {"residency": "jp"}]},
        "nets[0].residency",
    ),
    ("dns_zones", ZONE | {"name": "o.test", "names": ["ai", "ai"]}, "names[1]"),
    ("dns_zones", ZONE | {"name": "o.test", "names": ["*.ai"]}, "names[0]"),
    (
        "dns_zones",
        ZONE | {"name": "o.test", "secondaries": [{"address": "here"}]},
        "secondaries[0].address",
    ),
    ("dns_records", WWW | {"zone": "other.test"}, "zone"),
    ("dns_records", WWW | {"name": "WWW"}, "name"),
    ("dns_records", WWW | {"name": "w.*"}, "name"),
    ("dns_records", WWW | {"type": "SOA"}, "type"),
    ("dns_records", WWW | {"name": "@", "type": "NS", "values": ["ns1"]}, "type"),
    ("dns_records", WWW | {"ttl": -1}, "ttl"),
    ("dns_records", WWW | {"values": []}, "values"),
    ("dns_records", WWW | {"values": ["192.0.2.1", "192.0.2.256"]}, "values[1]"),
    ("dns_records", WWW | {"values": ["192.0.2.1 ("]}, "values[0]"),
    ("dns_records", WWW | {"values": ["192.0.2.1\n@ IN NS evil."]}, "values[0]"),
    ("dns_records", WWW | {"values": ["192.0.2.1", "192.0.2.1"]}, "values[1]"),
    ("dns_records", WWW | {"type": "CNAME", "values": ["a", "b"]}, "values[1]"),
    ("dns_records", WWW | {"type": "CAA", "values": ["0 issue"]}, "values[0]"),
    ("edge_nodes", {"name": "c", "region": "fra", "addresses": ["x"]}, "addresses[0]"),
]


@pytest.mark.parametrize(("collection", "values", "field"), INVALID)
async def test_a_mistake_is_named_by_its_path(
    api: Api, collection: str, values: dict[str, Any], field: str
) -> None:
    await api.make("dns_zones", **ZONE)
    before = api.store.desired
    answer = await api.http.post(f"/{collection}", json=values)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field), answer.text
    assert api.store.desired is before


async def test_what_cannot_stand_beside_each_other(api: Api) -> None:
    await api.make("dns_zones", **ZONE)
    await api.make("dns_records", **WWW)
    alias = {"zone": "example.test", "name": "alias", "type": "CNAME", "values": ["www"]}
    await api.make("dns_records", **alias)
    for values, field in (
        (alias | {"name": "www"}, "type"),
        (WWW | {"name": "alias", "type": "TXT", "values": ["x"]}, "type"),
        (WWW | {"name": "ai"}, "name"),
        (WWW, "name"),  # it is there
    ):
        answer = await api.http.post("/dns_records", json=values)
        assert (answer.status_code, answer.json()["error"]["field"]) == (409, field), answer.text
    answer = await api.http.patch("/dns_zones/example.test", json={"names": ["ai", "www"]})
    assert (answer.status_code, answer.json()["error"]["field"]) == (409, "names[1]")
    await api.make("dns_records", **WWW | {"name": "ai", "type": "TXT", "values": ["x"]})


async def test_a_zone_takes_so_many_records(api: Api) -> None:
    await api.make("dns_zones", **ZONE)
    for block in range(MAX_RECORDS // MAX_VALUES):
        values = [f"10.0.{block}.{i}" for i in range(MAX_VALUES)]
        await api.make("dns_records", **WWW | {"name": f"n{block}", "values": values})
    answer = await api.http.post("/dns_records", json=WWW)
    assert (answer.status_code, answer.json()["error"]["field"]) == (409, "values")
    topology = await contents(api)
    assert topology.dns is not None
    assert len(topology.dns.records) == MAX_RECORDS


async def test_servers_are_told_of_all_that_answers_depend_on(api: Api) -> None:
    await api.make("dns_zones", **ZONE)
    await api.make("dns_records", **WWW)
    await api.make(
        "dns_records", zone="example.test", name="@", type="MX", values=["10 mail", "20 mx.else."]
    )
    topology = await contents(api)
    assert topology.dns is not None
    assert [region.name for region in topology.regions] == ["fra", "iad"]
    assert [(edge.name, edge.port, edge.addresses) for edge in topology.edges] == [
        ("a", 0, ("192.0.2.1", "2001:db8::1")), ("b", 8787, ("192.0.2.2",)),
    ]  # fmt: skip
    assert topology.dns.records == (
        "@ 300 IN MX 10 mail.example.test.",
        "@ 300 IN MX 20 mx.else.",
        "www 60 IN A 192.0.2.80",
        "www 60 IN A 192.0.2.81",
    )
    with api.store.writing() as writing:  # as the reconciler does
        writing.decide(EDGE_NODE, "a", EDGE_PORT, 9000)
    assert [edge.port for edge in (await contents(api)).edges] == [9000, 8787]


async def test_they_are_told_only_when_something_changed(api: Api) -> None:
    await api.make("dns_zones", **ZONE)
    path = "/dns_zones/example.test/contents"
    etag = (await api.http.get(path)).headers["etag"]
    known = {"if-none-match": etag}
    await api.make("api_tokens", name="of no zone")
    answer = await api.http.get(path, headers=known)
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    await api.make("dns_records", **WWW)
    assert (await api.http.get(path, headers=known)).status_code == 200
    assert (await api.http.get("/dns_zones/none/contents")).status_code == 404


async def test_edges_that_drain_are_left_out_unless_all_do(api: Api) -> None:
    await api.make("dns_zones", **ZONE)
    await api.http.patch("/edge_nodes/a", json={"draining": True})
    assert [edge.name for edge in (await contents(api)).edges] == ["b"]
    await api.http.patch("/regions/iad", json={"draining": True})
    assert [edge.name for edge in (await contents(api)).edges] == ["a", "b"]


async def test_answers(api: Api) -> None:
    await api.make("dns_zones", **ZONE)
    await api.make("dns_records", **WWW)
    api.ready_regions = frozenset({"fra", "iad"})
    near = await ask(api, "ai.example.test", client="198.51.100.7")
    assert near == {
        "zone": "example.test", "name": "ai.example.test", "type": "A", "client": "198.51.100.7/32",
        "status": "NOERROR", "ttl": 30, "values": ["192.0.2.1"], "scope": 24,
        "regions": ["fra", "iad"],
    }  # fmt: skip
    api.ready_regions = frozenset({"iad"})
    moved = await ask(api, "ai.example.test", client="198.51.100.7")
    assert (moved["values"], moved["regions"]) == (["192.0.2.2"], ["iad"])
    bound = await ask(api, "ai.example.test", "AAAA", client="203.0.113.0/24")
    assert (bound["values"], bound["status"], bound["regions"]) == ([], "NOERROR", ["iad"])
    static = await ask(api, "www.example.test.", client="203.0.113.0/24")
    assert (static["values"], static["scope"]) == (["192.0.2.80", "192.0.2.81"], 0)
    assert (await ask(api, "none.example.test"))["status"] == "NXDOMAIN"
    await api.http.patch("/dns_records/example.test:www:A", json={"values": ["192.0.2.9"]})
    assert (await ask(api, "www.example.test"))["values"] == ["192.0.2.9"]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({}, 422, "name"),
        ({"name": "x" * 300}, 422, "name"),
        ({"name": "a..example.test"}, 422, "name"),
        ({"name": "example.test", "type": "B"}, 422, "type"),
        ({"name": "example.test", "type": "NONE"}, 422, "type"),
        ({"name": "example.test", "type": "any"}, 422, "type"),
        ({"name": "example.test", "client": "192.0.2.1/24"}, 422, "client"),
        ({"name": "elsewhere.test"}, 404, None),
    ],
)
async def test_questions_that_cannot_be_answered(
    api: Api, query: dict[str, str], status: int, field: str | None
) -> None:
    await api.make("dns_zones", **ZONE)
    answer = await api.http.get("/dns_answer", params=query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)


async def test_a_zone_without_edges_still_has_its_records(tmp_path: Path) -> None:
    api = Api(tmp_path / "bare")
    zone = ZONE | {"nets": []}
    try:
        await api.make("dns_zones", **zone)
        refused = await api.http.get("/dns_answer", params={"name": "ai.example.test"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "conflict")
        await api.make("regions", name="fra", iata="FRA")
        await api.make("dns_records", **WWW)
        assert (await ask(api, "www.example.test"))["values"] == ["192.0.2.80", "192.0.2.81"]
        empty = await ask(api, "ai.example.test")
        assert (empty["values"], empty["regions"]) == ([], [])
    finally:
        await api.close()


def apply(text: str, api: Api) -> None:
    manifest = parse_manifest(text.encode(), "topology").value
    revisions.apply(manifest, api.store, actor="test", prunes=True)


async def test_a_topology_s_zone_is_written_down(api: Api) -> None:
    text = """\
regions: [{name: fra, iata: FRA}, {name: iad, iata: IAD}]
edges: [{name: a, region: fra, addresses: [192.0.2.1]}]
dns:
  zone: Example.test.
  nameservers: [{name: ns1, addresses: [192.0.2.53]}]
  names: [ai, api]
  nets: [{net: 198.51.100.0/24, region: fra}]
  records: ['www IN CNAME ai', '@ 60 TXT "a b" c', '@ 60 IN TXT d', '*.wild 5 IN A 192.0.2.7']
"""
    apply(text, api)
    records = api.store.desired.dns_records("example.test")
    assert {id: (spec.ttl, spec.values) for id, spec in records.items()} == {
        "example.test:@:TXT": (60, ('"a b" "c"', '"d"')),
        "example.test:*.wild:A": (5, ("192.0.2.7",)),
        "example.test:www:CNAME": (86_400, ("ai.example.test.",)),
    }
    assert (await contents(api)).edges[0].addresses == ("192.0.2.1",)
    apply(text.replace("a b", "c d"), api)
    assert records.keys() == api.store.desired.dns_records("example.test").keys()
    apply(text.partition("dns:")[0], api)
    assert not api.store.desired.dns_zones()
    for line in ("www 300 IN BOGUS x", "WW~W IN A 192.0.2.1", "$INCLUDE /etc/passwd"):
        bad = text.replace("*.wild 5 IN A 192.0.2.7", line)
        with pytest.raises(ManifestError) as caught:
            apply(bad, api)
        assert "records: " in str(caught.value)
