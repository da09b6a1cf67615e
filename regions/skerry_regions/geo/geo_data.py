"""Places of addresses, by a database of the MaxMind format (MMDB): countries, or cities.

Two schemas are read: MaxMind's own, and the flat one of the `ip-location-db` packages.

    {"country": {"iso_code": "DE"}, "location": {"latitude": 51.6, "longitude": 9.4}}
    {"country_code": "DE", "latitude": "51.6", "longitude": "9.4"}

A record without coordinates stands for its country. Needs `maxminddb` (the extra `geo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import maxminddb

from skerry_regions.geo.countries import COUNTRIES
from skerry_regions.geo.networks import Address
from skerry_regions.geo.ranking import Location
from skerry_regions.geo.whereabouts import GeoDataUnusable, GeoPlace


class GeoData:
    """An open database of places. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        """Raises `GeoDataUnusable`."""
        self._reader = _MaxMindFile(path)
        self.path = path
        self.built_at = self._reader.built_at  # Unix seconds

    def place(self, address: Address) -> tuple[GeoPlace | None, int]:
        """Return what the database says of an address, and the bits of the block that it says it
        of."""
        record, bits = self._reader.find(address)
        return (None if record is None else _place(record)), bits


class SystemData:
    """An open database of autonomous systems: `autonomous_system_number`, in both schemas."""

    def __init__(self, path: Path) -> None:
        """Raises `GeoDataUnusable`."""
        self._reader = _MaxMindFile(path)

    def number(self, address: Address) -> tuple[int | None, int]:
        """Return which system announces an address, and the bits of the block that this is true
        for."""
        record, bits = self._reader.find(address)
        value = None if record is None else record.get("autonomous_system_number")
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        return (value if isinstance(value, int) else None), bits


class _MaxMindFile:
    """A file of the MaxMind format."""

    def __init__(self, path: Path) -> None:
        """Raises `GeoDataUnusable`."""
        try:
            self._reader = maxminddb.open_database(path, maxminddb.MODE_MMAP_EXT)
        except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
            raise GeoDataUnusable(f"{path}: {error}") from None
        metadata = self._reader.metadata()
        self.built_at = float(metadata.build_epoch)  # Unix seconds
        self._has_ipv6 = metadata.ip_version == 6

    def find(self, address: Address) -> tuple[Mapping[str, object] | None, int]:
        """Return the record of an address, and the bits of the block that it is of."""
        if address.version == 6 and not self._has_ipv6:
            return None, 0
        try:
            record, bits = self._reader.get_with_prefix_len(address)
        except (ValueError, maxminddb.InvalidDatabaseError):  # it is damaged there
            return None, address.max_prefixlen
        return (record if isinstance(record, dict) else None), bits


def _place(record: Mapping[str, object]) -> GeoPlace:
    country, location = record.get("country"), record.get("location")
    if isinstance(country, dict):
        code, coordinates = country.get("iso_code"), location
    else:
        code, coordinates = record.get("country_code"), record
    code = code if isinstance(code, str) else ""
    found = _location(coordinates) if isinstance(coordinates, dict) else None
    return GeoPlace(code, found or COUNTRIES.get(code))


def _location(record: Mapping[str, object]) -> Location | None:
    """Return coordinates, as numbers or as text."""
    degrees: list[float] = []
    for name, most in (("latitude", 90.0), ("longitude", 180.0)):
        value = record.get(name)
        try:
            number = float(value) if isinstance(value, str | float | int) else math.nan
        except ValueError:
            return None
        if not abs(number) <= most:
            return None
        degrees.append(number)
    return degrees[0], degrees[1]
