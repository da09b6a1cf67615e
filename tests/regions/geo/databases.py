"""Databases of both schemas."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from mmdb_writer import MMDBWriter
from netaddr import IPSet

GERMANY = (51.6, 9.4)
FLAT: dict[str, Any] = {
    "198.51.100.0/23": {"country_code": "DE"},
    "203.0.113.0/26": {"country_code": "US", "latitude": "40.7", "longitude": "-74.0"},
    "203.0.113.64/26": {"country_code": "JP"},
    "2001:db8::/40": {"country_code": "DE"},
    "192.0.2.0/24": {"country_code": "XX"},
    "192.0.3.0/24": {"country_code": "DE", "latitude": "north", "longitude": 500},
}


def write(path: Path, records: dict[str, Any], *, version: int = 6) -> Path:
    writer = MMDBWriter(version, "test", ipv4_compatible=version == 6, float_type="f64")
    for network, record in records.items():
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(str(path))
    return path


def at(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address)


# --- commands ------------------------------------------------------------------------------------

TOPOLOGY = """\
regions: [{name: fra, iata: FRA}, {name: iad, iata: IAD}]
edges:
  - {name: a, region: fra, addresses: [192.0.2.1]}
  - {name: b, region: iad, addresses: [192.0.2.2]}
links: [{between: [fra, iad], rtt: 0.09}]
dns:
  zone: example.test
  nameservers: [{name: ns1}]
  nets: [{net: 203.0.113.7/32, region: iad}]
"""
