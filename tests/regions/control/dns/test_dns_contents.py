"""What servers of DNS zones are sent, and what they answer from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.regions.control.dns.zones import WWW, ZONE, contents
from tests.regions.control.support import Api

from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.manifest import ManifestError, parse_manifest
from skerry_regions.control.desired.resources import EDGE_NODE
from skerry_regions.control.desired.store import EDGE_PORT

pytestmark = pytest.mark.anyio


async def ask(api: Api, name: str, rdtype: str = "A", client: str = "") -> dict[str, Any]:
    query = {"name": name, "type": rdtype, "client": client}
    answer = await api.http.get("/dns_answer", params=query)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


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
