"""Databases of where addresses are: both schemas, what a damaged one does, and installing one."""

from __future__ import annotations

import ipaddress
import time
from pathlib import Path
from typing import Any

import pytest
from tests.regions.geo.databases import FLAT, GERMANY, TOPOLOGY, at, write

from skerry_cli import main
from skerry_regions.geo.geo_data import GeoData
from skerry_regions.geo.places import Places
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.geo.whereabouts import GeoDataUnusable, GeoPlace, KnownPlaces, is_old

NESTED: dict[str, Any] = {
    "198.51.100.0/23": {"country": {"iso_code": "DE"}},
    "203.0.113.0/26": {
        "country": {"iso_code": "US"}, "location": {"latitude": 40.7, "longitude": -74.0},
    },
    "203.0.113.64/26": {"country": {"iso_code": "JP"}, "location": {}},
    "2001:db8::/40": {"country": {"iso_code": "DE"}, "location": "somewhere"},
    "192.0.2.0/24": {"country": {}},
    "192.0.3.0/24": {"country": {"iso_code": "DE"}, "location": {"latitude": 100.0}},
}  # fmt: skip


@pytest.mark.parametrize("records", [FLAT, NESTED], ids=["flat", "nested"])
def test_both_schemas(tmp_path: Path, records: dict[str, Any]) -> None:
    data = GeoData(write(tmp_path / "x.mmdb", records))
    assert data.place(at("198.51.101.7")) == (GeoPlace("DE", GERMANY), 23)
    assert KnownPlaces([data]).find(at("198.51.100.1")) == (ClientOrigin(location=GERMANY), 23)
    assert KnownPlaces([data]).find(at("203.0.113.1")) == (ClientOrigin(location=(40.7, -74.0)), 26)
    assert KnownPlaces([data]).find(at("2001:db8::1")) == (ClientOrigin(location=GERMANY), 40)
    assert KnownPlaces([data]).find(at("192.0.3.1")) == (
        ClientOrigin(location=GERMANY),
        24,
    )  # no coordinates of its own
    assert KnownPlaces([data]).find(at("192.0.2.1")) == (None, 24)  # nobody knows that country
    client, bits = KnownPlaces([data]).find(at("10.0.0.1"))
    assert (client, bits < 24) == (None, True)
    known = KnownPlaces([data])
    assert known.find(at("198.51.100.1"))[0] is known.find(at("2001:db8::1"))[0]


def test_a_file_of_ipv4_says_nothing_of_ipv6(tmp_path: Path) -> None:
    records = {net: record for net, record in FLAT.items() if ":" not in net}
    data = GeoData(write(tmp_path / "x.mmdb", records, version=4))
    assert KnownPlaces([data]).find(at("198.51.100.1")) == (ClientOrigin(location=GERMANY), 23)
    assert KnownPlaces([data]).find(at("2001:db8::1")) == (None, 0)


def test_what_is_written_down_goes_before(tmp_path: Path) -> None:
    """Blocks are the smaller of both, and never longer than resolvers cache."""
    data = GeoData(write(tmp_path / "x.mmdb", FLAT))
    here = ClientOrigin(location=(1.0, 2.0))
    places = Places(
        [], {ipaddress.ip_network("198.51.100.0/25"): here}, elsewhere=KnownPlaces([data])
    )
    assert places.locate(at("198.51.100.7")) == (here, 24)
    assert places.locate(at("198.51.101.7")) == (ClientOrigin(location=GERMANY), 24)
    # Of a /24 with several records all get what its first address has.
    assert places.locate(at("203.0.113.70")) == places.locate(at("203.0.113.1"))
    assert places.locate(at("203.0.113.70")) == (ClientOrigin(location=(40.7, -74.0)), 24)
    client, scope = places.locate(at("2001:db8:ff::1"))
    assert (client, scope) == (ClientOrigin(location=GERMANY), 40)
    assert places.locate(at("10.0.0.1"))[0] == ClientOrigin()


def test_no_two_blocks_overlap_and_differ(tmp_path: Path) -> None:
    places = Places(
        [],
        {ipaddress.ip_network("198.51.101.128/25"): ClientOrigin(location=(1.0, 2.0))},
        elsewhere=KnownPlaces([GeoData(write(tmp_path / "x.mmdb", FLAT))]),
    )
    start = int(at("192.0.0.0"))
    for number in range(start, start + (1 << 26), 1 << 11):
        client, scope = places.locate(ipaddress.IPv4Address(number))
        first = number >> (32 - scope) << (32 - scope)
        for same in (first, first + (1 << (32 - scope)) - 1):
            assert places.locate(ipaddress.IPv4Address(same)) == (client, scope)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(GeoDataUnusable, match="No such file"):
        GeoData(tmp_path / "none.mmdb")
    path = tmp_path / "x.mmdb"
    path.write_bytes(b"no database")
    with pytest.raises(GeoDataUnusable, match=r"x\.mmdb"):
        GeoData(path)
    whole = write(path, FLAT).read_bytes()
    marker = whole.rindex(b"\xab\xcd\xefMaxMind.com")
    path.write_bytes(b"\xff" * marker + whole[marker:])  # its metadata are all that is good
    client, bits = GeoData(path).place(at("198.51.100.1"))
    assert (client, bits) == (None, 32)


def test_age(tmp_path: Path) -> None:
    data = GeoData(write(tmp_path / "x.mmdb", FLAT))
    assert not is_old(data, time.time() + 59 * 86_400)
    assert is_old(data, time.time() + 61 * 86_400)


def test_explain(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = tmp_path / "t.yaml"
    topology.write_text(TOPOLOGY)

    def explained(address: str) -> list[str]:
        assert main(["geo", "explain", address, "--topology", str(topology)]) == 0
        return capsys.readouterr().out.splitlines()

    nobody = explained("198.51.100.1")
    assert nobody[0].startswith("198.51.100.1 is no one knows where (no data)")
    data = write(tmp_path / "x.mmdb", FLAT)
    assert main(["geo", "install", "--file", str(data)]) == 0
    assert capsys.readouterr().out == f"{home / 'geo' / 'country.mmdb'} is a copy of {data}.\n"
    today = time.strftime("%Y-%m-%d", time.gmtime(data.stat().st_mtime))
    assert explained("198.51.100.1") == [
        f"198.51.100.1 is near 51.6, 9.4 (DE: country.mmdb of {today}); true of the /23 around it.",
        "1. fra (17 ms, by distance)",
        "2. iad (117 ms, by distance)",
    ]
    assert explained("203.0.113.1") == [
        "203.0.113.1 is near 39.0, -77.5 (`nets`: 203.0.113.7/32); true of the /24 around it.",
        "1. iad (0 ms, by `links`)",
        "2. fra (90 ms, by `links`)",
    ]
    topology.write_text(TOPOLOGY + f"  geo: {tmp_path}/other.mmdb\n")
    assert main(["geo", "explain", "::1", "--topology", str(topology)]) == 1
    assert "other.mmdb" in capsys.readouterr().err


def test_overrides_and_the_default_region(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systems: dict[str, Any] = {
        "198.51.100.0/24": {"autonomous_system_number": 64496},
        "203.0.113.0/24": {"autonomous_system_number": "64497"},
    }
    asn = write(tmp_path / "asn.mmdb", systems)
    data = write(tmp_path / "x.mmdb", FLAT)
    assert main(["geo", "install", "--file", str(data)]) == 0
    topology = tmp_path / "t.yaml"
    topology.write_text(
        TOPOLOGY.replace("203.0.113.7/32", "203.0.113.128/25")
        + f"""\
  asn: {asn}
  default_region: iad
  overrides:
    - {{asn: 64496, region: iad}}
    - {{country: DE, coordinates: [38.9, -77.0]}}
"""
    )
    capsys.readouterr()

    def explained(address: str) -> list[str]:
        assert main(["geo", "explain", address, "--topology", str(topology)]) == 0
        return capsys.readouterr().out.splitlines()

    assert explained("198.51.100.1") == [  # the system, and not the country
        "198.51.100.1 is near 39.0, -77.5 (`overrides`: AS64496); true of the /24 around it.",
        "1. iad (0 ms, by `links`)",
        "2. fra (90 ms, by `links`)",
    ]
    assert explained("198.51.101.1")[:2] == [
        "198.51.101.1 is near 38.9, -77.0 (`overrides`: DE); true of the /24 around it.",
        "1. iad (15 ms, by distance)",
    ]
    unknown = explained("10.0.0.1")
    assert "(`default_region`: iad)" in unknown[0]
    assert unknown[1] == "1. iad (0 ms, by `links`)"
    topology.write_text(topology.read_text().replace("asn: ", "asn: /gone"))
    assert main(["geo", "explain", "::1", "--topology", str(topology)]) == 1
