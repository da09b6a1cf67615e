"""Answers by place: the regions that are near a client, and the block that this is true for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from skerry_regions.geo.networks import MAX_SCOPE, Address, Network, Networks, widened
from skerry_regions.geo.ranking import (
    ClientOrigin,
    Filter,
    RegionCandidate,
    drained,
    first,
    nearest,
    rank,
    resident,
    seconds_to,
    shed,
    up,
)
from skerry_regions.geo.shares import SLOTS, balanced, is_draining, num_nearest, slot_of
from skerry_regions.geo.whereabouts import ClientRtts, Whereabouts
from skerry_regions.topology.spec import TopologyRegion

REGIONS_PER_ANSWER = 2


@dataclass(frozen=True, slots=True)
class Site:
    """A region and the public addresses of its edges."""

    region: TopologyRegion
    addresses: tuple[Address, ...]
    https_port: int | None = None  # where all of them take HTTP over TLS; None: they do not
    weight: float = 1.0  # among regions that are equally near
    drain: int = 0  # percent of its clients that it gives away


@dataclass(frozen=True, slots=True)
class State:
    """What is known of the sites now. A change of it is a change of answers, at once."""

    down: frozenset[str] = frozenset()  # regions
    busy: frozenset[str] = frozenset()  # regions
    rtts: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Measured between regions; seconds, by source and region."""


class Places:
    """Which addresses a client at some address gets. Pure but for `state`, which others replace."""

    def __init__(
        self,
        sites: Sequence[Site],
        clients: Mapping[Network, ClientOrigin],
        elsewhere: Whereabouts | None = None,
        *,
        default: ClientOrigin | None = None,
        spread: float | None = None,
    ) -> None:
        """`elsewhere` is called for addresses that `clients` does not have, and who is unknown
        there too counts as `default`. With `spread` regions whose round trips differ by at most so
        many seconds share clients by weight, and regions drain."""
        self._elsewhere = elsewhere
        self._default = default or ClientOrigin()
        self._spread = spread
        self._sites = {site.region.name: site for site in sites}
        self._nets = _widened(clients)
        self._clients = Networks(self._nets)
        self.state = State()

    @property
    def regions(self) -> tuple[str, ...]:
        """Return those that have addresses, as the topology orders them."""
        return tuple(self._sites)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Return regions that have addresses, as the topology orders them."""
        return tuple(self._sites.values())

    @property
    def num_slots(self) -> int:
        """Return into how many slots clients of one kind are divided, which may get different
        orders."""
        return 1 if self._spread is None else SLOTS

    def slot(self, address: Address) -> int:
        """Return in which of them an address is."""
        return 0 if self._spread is None else slot_of(address)

    def order(self, client: ClientOrigin, slot: int = 0) -> list[str]:
        """Return regions for a client, best first."""
        state, client = self.state, self.measured(client)
        candidates = [
            RegionCandidate(
                site.region,
                name not in state.down,
                name in state.busy,
                site.weight,
                self._spread is not None and is_draining(name, site.drain, slot),
            )
            for name, site in self._sites.items()
        ]
        sharing: list[Filter] = [] if self._spread is None else [balanced(self._spread, slot)]
        chain = (resident, nearest, *sharing, up, shed, drained, first(REGIONS_PER_ANSWER))
        return rank(candidates, client, chain)

    def measured(self, client: ClientOrigin) -> ClientOrigin:
        """Return it with round trips of the region that it is at, where those are known."""
        rtts = self.state.rtts.get(client.region or "")
        return replace(client, rtt={**client.rtt, **rtts}) if rtts else client

    def likeness(self, client: ClientOrigin) -> object:
        """Return all that the chain looks at: clients for whom this is equal get the same order
        whatever the state is."""
        if client.region is not None:  # what is measured there may change
            return client.location, client.region, client.zone, frozenset(client.rtt.items())
        near = sorted(self._region_specs(), key=lambda each: seconds_to(each, client))
        names = client.zone, tuple(each.name for each in near)
        if self._spread is None:
            return names
        left = resident([RegionCandidate(each) for each in near], client)
        return names, num_nearest(left, client, self._spread)

    def moved_by(self, rtts: ClientRtts) -> ClientRtts:
        """Return those measured round trips by which another region is the nearest one than by what
        is stated of a network. What an operator has written down of one stays."""
        elsewhere, regions = self._elsewhere, self._region_specs()
        moved: dict[Network, Mapping[str, float]] = {}
        for network, known in rtts.items():
            address = network.network_address
            if not regions or self._clients.find(address)[0] is not None:
                continue
            stated = None if elsewhere is None else elsewhere.stated(address)[0]
            before = stated or self._default
            after = replace(before, rtt={**before.rtt, **known})
            if _nearest(regions, before) != _nearest(regions, after):
                moved[network] = known
        return moved

    def tells_apart_like(self, other: Places) -> bool:
        """Return whether `locate`, `slot` and `likeness` say the same of everybody as those of
        `other`."""
        return (
            self._elsewhere is other._elsewhere
            and self._nets == other._nets
            and self._default == other._default
            and self._spread == other._spread
            and self._region_specs() == other._region_specs()
        )

    def locate(self, address: Address) -> tuple[ClientOrigin, int]:
        """Return what is known of a client, and the bits of the block that all of it is true
        for."""
        client, scope = self._clients.find(address)
        longest = MAX_SCOPE[address.version]
        if client is None and self._elsewhere is not None:
            client, bits = self._elsewhere.find(_first_of_block(address, longest))
            scope = max(scope, bits)
        return client or self._default, min(scope, longest)

    def _region_specs(self) -> list[TopologyRegion]:
        return [site.region for site in self._sites.values()]

    def https_port(self, name: str) -> int | None:
        """Return where a region's edges take HTTP over TLS; None where they do not."""
        return self._sites[name].https_port

    def addresses(self, name: str, version: int) -> list[str]:
        """Return addresses of a region's edges, those of one family."""
        addresses = self._sites[name].addresses
        return [str(address) for address in addresses if address.version == version]


def _nearest(regions: Sequence[TopologyRegion], client: ClientOrigin) -> str:
    return min(regions, key=lambda each: seconds_to(each, client)).name


def _first_of_block(address: Address, bits: int) -> Address:
    """Return the lowest address of the block: all in it get the same answer."""
    host_bits = address.max_prefixlen - bits
    return type(address)(int(address) >> host_bits << host_bits)


def _widened(clients: Mapping[Network, ClientOrigin]) -> dict[Network, ClientOrigin]:
    """Return clients by the whole block that caches hold: that goes before who is in a part of
    it."""
    result: dict[Network, ClientOrigin] = {}
    for network, client in clients.items():
        if widened(network) != network:
            result.setdefault(widened(network), client)
    exact = {network: client for network, client in clients.items() if widened(network) == network}
    return {**result, **exact}
