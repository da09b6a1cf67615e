"""Places of clients that no operator has written down: what each source says, in turn.

overrides by autonomous system ▶ ranges that clouds publish ▶ country data, overrides by country
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from skerry_regions.geo.networks import Address, Network, Networks
from skerry_regions.geo.ranking import ClientOrigin, Location

OLD_SECONDS = 60 * 86_400.0  # after which addresses have moved
MAX_KNOWN = 65_536  # places that are kept as one object each

ClientRtts = Mapping[Network, Mapping[str, float]]  # measured; seconds, by network and region


class GeoDataUnusable(Exception):
    """Data that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class GeoPlace:
    """What a source says of an address."""

    country: str  # ISO 3166-1 alpha-2; empty where it says none
    location: Location | None  # degrees
    source: str = ""  # that it is, of several in one file


class PlaceSource(Protocol):
    """Says where addresses are, such as `GeoData` and `CloudRanges`."""

    path: Path
    built_at: float  # Unix seconds

    def place(self, address: Address) -> tuple[GeoPlace | None, int]:
        """Return what it says, and the bits of the block that it says it of."""
        ...


class SystemSource(Protocol):
    """Says which autonomous system announces an address."""

    def number(self, address: Address) -> tuple[int | None, int]:
        """Return its number, and the bits of the block that this is true for."""
        ...


def is_old(source: PlaceSource, now: float) -> bool:
    """Return whether addresses have moved since a source was made. `now` is Unix seconds."""
    return now - source.built_at > OLD_SECONDS


class Whereabouts(Protocol):
    """Finds where addresses are that are not written down."""

    def find(self, address: Address) -> tuple[ClientOrigin | None, int]:
        """Return what is known of an address, and the bits of the block that it is true for."""
        ...

    def stated(self, address: Address) -> tuple[ClientOrigin | None, int]:
        """Return the same without what was measured."""
        ...


@dataclass(frozen=True, slots=True)
class Overrides:
    """What operators say of countries and of autonomous systems."""

    countries: Mapping[str, ClientOrigin]
    systems: Mapping[int, ClientOrigin]


class KnownPlaces:
    """All sources together; see `Whereabouts`. Safe to use from threads."""

    def __init__(
        self,
        sources: Sequence[PlaceSource],
        overrides: Overrides | None = None,
        systems: SystemSource | None = None,
        measured: ClientRtts | None = None,
    ) -> None:
        """Of `sources` the first one that knows an address counts. `measured` round trips count
        for more than distance from wherever an address is said to be."""
        self.sources = tuple(sources)
        self._overrides = overrides or Overrides({}, {})
        self._systems = systems
        self.measured = dict(measured or {})
        self._rtts = Networks(self.measured)
        self._origins: dict[Location, ClientOrigin] = {}

    def with_measured(self, measured: ClientRtts) -> KnownPlaces:
        """Return the same sources with other round trips."""
        return KnownPlaces(self.sources, self._overrides, self._systems, measured)

    def find(self, address: Address) -> tuple[ClientOrigin | None, int]:
        """Return what is known of an address, and the bits of the block that it is true for."""
        origin, bits = self.stated(address)
        rtts, finer = self._rtts.find(address)
        if rtts is not None:
            origin = origin or ClientOrigin()
            origin = replace(origin, rtt={**origin.rtt, **rtts})
        return origin, max(bits, finer)

    def stated(self, address: Address) -> tuple[ClientOrigin | None, int]:
        """Return the same without what was measured."""
        bits = 0
        if self._systems is not None and self._overrides.systems:
            number, bits = self._systems.number(address)
            if number is not None and number in self._overrides.systems:
                return self._overrides.systems[number], bits
        place, _, finer = self.place(address)
        bits = max(bits, finer)
        if place is None:
            return None, bits
        if place.country in self._overrides.countries:
            return self._overrides.countries[place.country], bits
        return self._origin(place.location), bits

    def place(self, address: Address) -> tuple[GeoPlace | None, PlaceSource | None, int]:
        """Return what the first source says that knows the address, and which one that is."""
        bits = 0
        for source in self.sources:
            place, finer = source.place(address)
            bits = max(bits, finer)
            if place is not None and (place.location is not None or place.country):
                return place, source, bits
        return None, None, bits

    def system(self, address: Address) -> int | None:
        """Return the autonomous system that an override counts for, if one does."""
        number = None if self._systems is None else self._systems.number(address)[0]
        return number if number in self._overrides.systems else None

    def overrides_country(self, country: str) -> bool:
        """Return whether the operator says where its clients are."""
        return country in self._overrides.countries

    def _origin(self, location: Location | None) -> ClientOrigin | None:
        """Return one object for all clients of a place."""
        if location is None:
            return None
        origin = self._origins.get(location)
        if origin is None:
            origin = ClientOrigin(location=location)
            if len(self._origins) < MAX_KNOWN:
                self._origins[location] = origin
        return origin
