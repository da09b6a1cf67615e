"""A zone and a record of it, as they are written down."""

from __future__ import annotations

from typing import Any

from tests.regions.control.support import Api

from skerry_regions.topology.loading import decode_topology
from skerry_regions.topology.spec import Topology

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


async def contents(api: Api) -> Topology:
    answer = await api.http.get("/dns_zones/example.test/contents")
    assert answer.status_code == 200, answer.text
    return decode_topology(answer.content)
