"""All blocks of addresses that `Places.locate` distinguishes, as arrays."""

from __future__ import annotations

import ipaddress
from collections.abc import Generator

import numpy as np

from skerry_dns.fast.table import Blocks
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import Places
from skerry_regions.geo.ranking import ClientOrigin

MAX_BLOCKS = 1 << 22  # of one family; the world's routing tables have a quarter of that
BLOCKS_AT_ONCE = 200  # between yields: a few milliseconds


class TooManyBlocks(Exception):
    """Clients are distinguished so finely that they do not fit."""


class ClientKinds:
    """Kinds of clients that always get the same order of regions: each has a number, from 0."""

    def __init__(self, places: Places) -> None:
        self.clients: list[ClientOrigin] = []  # one of each kind …
        self.examples: list[Address] = []  # … and its address
        self._places = places
        self._by_likeness: dict[object, int] = {}
        self._by_contents: dict[object, int] = {}

    def number(self, client: ClientOrigin, example: Address) -> int:
        """Return the same for clients that are alike."""
        contents = client.location, client.region, client.zone, frozenset(client.rtt.items())
        if (known := self._by_contents.get(contents)) is not None:
            return known
        number = self._by_likeness.setdefault(self._places.likeness(client), len(self.clients))
        if number == len(self.clients):
            self.clients.append(client)
            self.examples.append(example)
        self._by_contents[contents] = number
        return number


def blocks_of(places: Places, version: int, kinds: ClientKinds) -> Generator[None, None, Blocks]:
    """Walk through all addresses of a family, block by block. Raises `TooManyBlocks`."""
    width = 32 if version == 4 else 128
    starts: list[int] = []
    clients: list[int] = []
    scopes: list[int] = []
    at = 0
    while at < 1 << width:
        address = ipaddress.IPv4Address(at) if version == 4 else ipaddress.IPv6Address(at)
        client, scope = places.locate(address)
        starts.append(at << 32 if version == 4 else at >> 64)
        clients.append(kinds.number(client, address))
        scopes.append(scope)
        at += 1 << (width - scope)
        if len(starts) > MAX_BLOCKS:
            raise TooManyBlocks
        if len(starts) % BLOCKS_AT_ONCE == 0:
            yield
    addresses = np.array(starts, np.uint64)
    prefixes = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    firsts = np.empty((1 << 16) + 1, np.int32)
    firsts[:-1] = np.searchsorted(addresses, prefixes, side="right") - 1
    firsts[-1] = len(starts) - 1
    return Blocks(firsts, addresses, np.array(clients, np.int32), np.array(scopes, np.int32))
