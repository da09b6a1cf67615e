"""Places of a listener: which connection has one, and which gives it up. No I/O.

A network (a /24 of IPv4, a /56 of IPv6) that holds more than its share gives first; else whoever
has waited longest for its client: between two requests, or for a head that does not come. What is
being answered is never given up. When none can give, a few places are left for probes of health,
the newest of which displaces the oldest: one client that took them all and says nothing shuts no
other out.
"""

from __future__ import annotations

import functools
import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal, Protocol

from skerry_regions.geo.networks import client_address

SHARE = 8  # a network's part of all places is one in so many, where others want them
IPV4_BITS, IPV6_BITS = 24, 56  # of an address, that are the same in a network

Place = Literal["any", "probe"]
Holders = OrderedDict["Holder", None]  # the longest waiting first


class Holder(Protocol):
    """A connection, or a TLS handshake that may become one."""

    def give_up(self) -> None:
        """Close now: another one has the place."""
        ...


@dataclass(slots=True)
class _Network:
    """The places of one network."""

    held: int = 0
    idle: Holders = field(default_factory=OrderedDict)
    sending: Holders = field(default_factory=OrderedDict)


class ConnectionTable:
    """The places of one listener: `size` for anybody, `reserve` more for probes of health."""

    def __init__(self, size: int, reserve: int) -> None:
        self._size = size
        self._reserve = reserve
        self._share = max(1, size // SHARE)
        self._network_of: dict[Holder, str] = {}  # of those with a place for anything
        self._networks: dict[str, _Network] = {}
        self._crowded: set[str] = set()  # networks beyond their share: fewer than `SHARE`
        self._idle: Holders = OrderedDict()
        self._probes: Holders = OrderedDict()

    def admit(self, holder: Holder, network: str) -> Place:
        """Give a place to a newcomer, which waits for its client."""
        if len(self._network_of) >= self._size:
            victim = self._victim(network)
            if victim is None:
                self._admit_probe(holder)
                return "probe"
            self.release(victim)
            victim.give_up()
        self._network_of[holder] = network
        places = self._networks.setdefault(network, _Network())
        places.held += 1
        if places.held > self._share:
            self._crowded.add(network)
        self.wait(holder)
        return "any"

    def wait(self, holder: Holder) -> None:
        """Note that it waits for its client's next request."""
        if (places := self._places_of(holder)) is not None:
            places.sending.pop(holder, None)
            self._idle[holder] = places.idle[holder] = None

    def receive(self, holder: Holder) -> None:
        """Note that it waits for the rest of a request."""
        if (places := self._places_of(holder)) is not None:
            self._work(holder, places)
            places.sending[holder] = None

    def work(self, holder: Holder) -> None:
        """Note that its request is whole: nothing takes its place from it."""
        if (places := self._places_of(holder)) is not None:
            self._work(holder, places)

    def release(self, holder: Holder) -> None:
        """Take its place back. Idempotent."""
        self._probes.pop(holder, None)
        places = self._places_of(holder)
        if places is None:
            return
        self._work(holder, places)
        network = self._network_of.pop(holder)
        places.held -= 1
        if places.held <= self._share:
            self._crowded.discard(network)
        if not places.held:
            del self._networks[network]

    def _places_of(self, holder: Holder) -> _Network | None:
        network = self._network_of.get(holder)
        return None if network is None else self._networks[network]

    def _work(self, holder: Holder, places: _Network) -> None:
        for holders in (self._idle, places.idle, places.sending):
            holders.pop(holder, None)

    def _victim(self, newcomer: str) -> Holder | None:
        """Return who gives up its place for one of a network."""
        if self._crowded:
            largest = max(self._crowded, key=lambda name: self._networks[name].held)
            places = self._networks[largest]
            if places.idle:
                return next(iter(places.idle))
            if places.sending and newcomer != largest:
                return next(iter(places.sending))
        return next(iter(self._idle), None)

    def _admit_probe(self, holder: Holder) -> None:
        while len(self._probes) >= self._reserve:
            oldest, _ = self._probes.popitem(last=False)
            oldest.give_up()
        self._probes[holder] = None


def network_of(peer: object) -> str:
    """Return the network of a socket's address; one for all that have none."""
    return _network(str(peer[0])) if isinstance(peer, tuple) else ""


@functools.lru_cache(4096)
def _network(host: str) -> str:
    try:
        address = client_address(host)
    except ValueError:
        return ""
    bits = IPV4_BITS if address.version == 4 else IPV6_BITS
    return str(ipaddress.ip_network((address, bits), strict=False))
