"""What of a home says where clients are: cloud ranges, country data, and a topology's overrides."""

from __future__ import annotations

from pathlib import Path

from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.state import Home
from skerry_regions.geo.cloud_ranges import CloudRanges
from skerry_regions.geo.from_topology import overrides_of
from skerry_regions.geo.whereabouts import (
    GeoDataUnusable,
    KnownPlaces,
    PlaceSource,
    SystemSource,
)
from skerry_regions.topology.spec import Topology
from skerry_regions.topology.zone_spec import DnsSpec

NEEDS_GEO = "country data needs `pip install '.[geo]'` in Skerry's repository"


def geo_files(home: Home, spec: DnsSpec | None) -> tuple[Path, ...]:
    """Return files that count for a zone, whether they are there or not."""
    files = [Path(spec.geo) if spec is not None and spec.geo else home.geo_data]
    if spec is None or spec.clouds:
        files.append(home.cloud_ranges)
    if spec is not None and spec.asn is not None:
        files.append(Path(spec.asn))
    return tuple(files)


def open_known_places(home: Home, topology: Topology) -> KnownPlaces | None:
    """Open everything that is there; None when that is nothing. Raises `CannotStart`."""
    spec = topology.dns
    with raised_as(CannotStart, GeoDataUnusable):
        sources: list[PlaceSource] = []
        if (spec is None or spec.clouds) and home.cloud_ranges.exists():
            sources.append(CloudRanges(home.cloud_ranges))
        if spec is not None and spec.geo:
            sources.append(country_data(Path(spec.geo)))
        elif home.geo_data.exists():
            sources.append(country_data(home.geo_data))
        systems = None if spec is None or spec.asn is None else _system_data(Path(spec.asn))
    if not sources and systems is None:
        return None
    return KnownPlaces(sources, overrides_of(topology), systems)


def country_data(path: Path) -> PlaceSource:
    """Open country data. Raises `CannotStart`, or GeoDataUnusable."""
    try:
        from skerry_regions.geo.geo_data import GeoData
    except ImportError:
        raise CannotStart(NEEDS_GEO) from None
    return GeoData(path)


def _system_data(path: Path) -> SystemSource:
    try:
        from skerry_regions.geo.geo_data import SystemData
    except ImportError:
        raise CannotStart(NEEDS_GEO) from None
    return SystemData(path)
