"""Answers by place: the regions that are near a client, and the block that this is true for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from skerry_regions.geo.networks import Address, Network, Networks
from skerry_regions.geo.ranking import (
    Candidate,
    Client,
    Filter,
    first,
    nearest,
    rank,
    resident,
    seconds_to,
    shed,
    up,
)
from skerry_regions.topology.spec import Region

MAX_SCOPE = {4: 24, 6: 56}  # resolvers cache no longer prefixes
REGIONS_PER_ANSWER = 2


@dataclass(frozen=True, slots=True)
class Site:
    """A region and the public addresses of its edges."""

    region: Region
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What is known of the sites now. A change of it is a change of answers, at once."""

    down: frozenset[str] = frozenset()  # regions
    busy: frozenset[str] = frozenset()  # regions
    rtts: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Measured between regions; seconds, by source and region."""


class Whereabouts(Protocol):
    """Tells where addresses are that nobody has written down."""

    def find(self, address: Address) -> tuple[Client | None, int]:
        """What is known of an address, and the bits of the block that it is true for."""
        ...


class Places:
    """Which addresses a client at some address gets. Pure but for `state`, which others replace."""

    def __init__(
        self,
        sites: Sequence[Site],
        clients: Mapping[Network, Client],
        chain: Sequence[Filter] = (resident, up, nearest, shed, first(REGIONS_PER_ANSWER)),
        elsewhere: Whereabouts | None = None,
    ) -> None:
        """`elsewhere` is asked for addresses that `clients` does not have."""
        self._elsewhere = elsewhere
        self._sites = {site.region.name: site for site in sites}
        self._nets = _widened(clients)
        self._clients = Networks(self._nets)
        self._chain = tuple(chain)
        self.state = State()

    @property
    def regions(self) -> tuple[str, ...]:
        """Those that have addresses, as the topology orders them."""
        return tuple(self._sites)

    def order(self, client: Client) -> list[str]:
        """Regions for a client, best first."""
        state = self.state
        candidates = [
            Candidate(site.region, name not in state.down, name in state.busy)
            for name, site in self._sites.items()
        ]
        return rank(candidates, self.measured(client), self._chain)

    def measured(self, client: Client) -> Client:
        """With round trips of the region that it is at, where those are known."""
        rtts = self.state.rtts.get(client.region or "")
        return replace(client, rtt={**client.rtt, **rtts}) if rtts else client

    def likeness(self, client: Client) -> object:
        """Clients for whom this is equal get the same order whatever the state is: it is all that
        the chain looks at."""
        if client.region is not None:  # what is measured there may change
            return client.location, client.region, client.zone, frozenset(client.rtt.items())
        near = sorted(self._region_specs(), key=lambda each: seconds_to(each, client))
        return client.zone, tuple(each.name for each in near)

    def tells_apart_like(self, other: Places) -> bool:
        """Whether `locate` and `likeness` say the same of everybody as those of `other`."""
        return (
            self._elsewhere is other._elsewhere
            and self._nets == other._nets
            and self._region_specs() == other._region_specs()
        )

    def locate(self, address: Address) -> tuple[Client, int]:
        """What is known of a client, and the bits of the block that all of it is true for."""
        client, scope = self._clients.find(address)
        longest = MAX_SCOPE[address.version]
        if client is None and self._elsewhere is not None:
            client, bits = self._elsewhere.find(_first_of_block(address, longest))
            scope = max(scope, bits)
        return client or Client(), min(scope, longest)

    def _region_specs(self) -> list[Region]:
        return [site.region for site in self._sites.values()]

    def addresses(self, name: str, version: int) -> list[str]:
        """Of a region's edges, those of one family."""
        addresses = self._sites[name].addresses
        return [str(address) for address in addresses if address.version == version]


def _first_of_block(address: Address, bits: int) -> Address:
    """The lowest address of the block: all in it get the same answer."""
    host_bits = address.max_prefixlen - bits
    return type(address)(int(address) >> host_bits << host_bits)


def widened(network: Network) -> Network:
    """No longer than resolvers cache: a /32 speaks for its /24."""
    longest = MAX_SCOPE[network.version]
    return network if network.prefixlen <= longest else network.supernet(new_prefix=longest)


def _widened(clients: Mapping[Network, Client]) -> dict[Network, Client]:
    """Who is there by the whole block that caches hold goes before who is in a part of it."""
    result: dict[Network, Client] = {}
    for network, client in clients.items():
        if widened(network) != network:
            result.setdefault(widened(network), client)
    exact = {network: client for network, client in clients.items() if widened(network) == network}
    return {**result, **exact}
