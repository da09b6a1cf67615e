"""DNS zones and their records: what may be written, what servers are told, what is answered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.regions.control.dns.zones import NETS, WWW, ZONE, contents
from tests.regions.control.support import Api

from skerry_regions.control.dns.specs import MAX_RECORDS, MAX_VALUES

pytestmark = pytest.mark.anyio


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
