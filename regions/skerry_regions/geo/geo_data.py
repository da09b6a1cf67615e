"""Where addresses are, by a database of the MaxMind format (MMDB): countries, or cities.

Two schemas are read: MaxMind's own, and the flat one of the `ip-location-db` packages.

    {"country": {"iso_code": "DE"}, "location": {"latitude": 51.6, "longitude": 9.4}}
    {"country_code": "DE", "latitude": "51.6", "longitude": "9.4"}

A record without coordinates stands for its country. Needs `maxminddb` (the extra `geo`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import maxminddb

from skerry_regions.geo.countries import COUNTRIES
from skerry_regions.geo.networks import Address
from skerry_regions.geo.ranking import Client, Location

OLD_SECONDS = 60 * 86_400.0  # after which addresses have moved
MAX_KNOWN = 65_536  # places that are kept as one object each


class GeoDataUnusable(Exception):
    """A database that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a record says."""

    country: str  # ISO 3166-1 alpha-2; empty where it says none
    location: Location | None  # degrees


class GeoData:
    """An open database. See `Whereabouts`. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        """Raises `GeoDataUnusable`."""
        self.path = path
        try:
            self._reader = maxminddb.open_database(path, maxminddb.MODE_MMAP_EXT)
        except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
            raise GeoDataUnusable(f"{path}: {error}") from None
        metadata = self._reader.metadata()
        self.built_at = float(metadata.build_epoch)  # Unix seconds
        self._has_ipv6 = metadata.ip_version == 6
        self._clients: dict[Location, Client] = {}

    def is_old(self, now: float) -> bool:
        """`now` is Unix seconds."""
        return now - self.built_at > OLD_SECONDS

    def find(self, address: Address) -> tuple[Client | None, int]:
        place, bits = self.place(address)
        if place is None or place.location is None:
            return None, bits
        client = self._clients.get(place.location)
        if client is None:
            client = Client(location=place.location)
            if len(self._clients) < MAX_KNOWN:
                self._clients[place.location] = client
        return client, bits

    def place(self, address: Address) -> tuple[Place | None, int]:
        """What the database says of an address, and the bits of the block that it says it of."""
        if address.version == 6 and not self._has_ipv6:
            return None, 0
        try:
            record, bits = self._reader.get_with_prefix_len(address)
        except (ValueError, maxminddb.InvalidDatabaseError):  # it is damaged there
            return None, address.max_prefixlen
        return (_place(record) if isinstance(record, dict) else None), bits


def _place(record: Mapping[str, object]) -> Place:
    country, location = record.get("country"), record.get("location")
    if isinstance(country, dict):
        code, coordinates = country.get("iso_code"), location
    else:
        code, coordinates = record.get("country_code"), record
    code = code if isinstance(code, str) else ""
    found = _location(coordinates) if isinstance(coordinates, dict) else None
    return Place(code, found or COUNTRIES.get(code))


def _location(record: Mapping[str, object]) -> Location | None:
    """Coordinates, as numbers or as text."""
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
