"""A DNS zone as an operator writes it down, and where its clients are."""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from skerry_regions.spec_types import DomainName, IPAddress, Latitude, Longitude, Name
from skerry_regions.zones import Zone

Mistake = tuple[str, str]  # where, such as `nets[1].region`, and what


class NameServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server of the zone: `name` inside it, or a whole name that ends with a dot."""

    name: DomainName
    addresses: Annotated[tuple[IPAddress, ...], Meta(max_length=16)] = ()


class ClientNet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the clients of a network are: at a region, or at coordinates."""

    net: Annotated[str, Meta(max_length=43)]  # 203.0.113.0/24, 2001:db8::/32
    region: Name | None = None
    coordinates: tuple[Latitude, Longitude] | None = None  # degrees
    residency: Zone | None = None
    """A zone that these clients must not be sent out of."""


class Secondary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is notified when the zone has changed."""

    address: IPAddress
    port: Annotated[int, Meta(ge=1, le=65535)] = 53


class ClientOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the clients of a country or of an autonomous system are, whatever data says."""

    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")] | None = None  # ISO 3166-1 alpha-2
    asn: Annotated[int, Meta(ge=1, le=4_294_967_295)] | None = None
    region: Name | None = None
    coordinates: tuple[Latitude, Longitude] | None = None  # degrees


class RegionShare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of its clients a region takes."""

    name: Name
    weight: Annotated[float, Meta(ge=0.0, le=1000.0)] = 1.0
    """Among regions that are equally near; see `DnsSpec.spread`."""
    drain: Annotated[int, Meta(ge=0, le=100)] = 0
    """Percent of its clients that get their next region first."""


class HealthSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a region is left and taken again, and when it counts as busy."""

    interval: Annotated[float, Meta(ge=0.5, le=60.0)] = 1.5  # seconds between probes
    failures: Annotated[int, Meta(ge=1, le=20)] = 3  # in a row, after which it is left
    successes: Annotated[int, Meta(ge=1, le=20)] = 5  # in a row, after which it is taken again
    busy_seconds: Annotated[float, Meta(ge=0.05, le=600.0)] = 2.0
    """Of waiting prefill work, from which on a region is busy."""


class AnswerLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What networks (/24 or /56) get without a cookie; and of proofs, with one too."""

    responses_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] = 20
    """Alike: of one name, for one client subnet."""
    subnets_per_second: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Of all names, for all client subnets that its queries carry."""
    proofs_per_second: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Signatures that are made because somebody requests a name that does not exist."""
    exempt: Annotated[tuple[Annotated[str, Meta(max_length=43)], ...], Meta(max_length=1000)] = ()
    """Networks without limits on responses: resolvers of whom one knows."""


class ZoneSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a zone's server answers, and whom it knows."""

    contact: DomainName = "hostmaster"
    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 5353
    geo: Annotated[str, Meta(pattern="^/", max_length=4096)] | None = None
    """A database (MMDB) of where other clients are; absent: that of `skerry geo install`."""
    secondaries: Annotated[tuple[Secondary, ...], Meta(max_length=16)] = ()
    ttl: Annotated[int, Meta(ge=5, le=86_400)] = 30  # seconds, of answers by place
    health: HealthSpec = HealthSpec()
    limits: AnswerLimits = AnswerLimits()
    regions: Annotated[tuple[RegionShare, ...], Meta(max_length=1000)] = ()
    spread: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Regions whose round trip is longer than the nearest one's by at most so many seconds are
    equally near: clients are shared among them by weight."""
    default_region: Name | None = None  # for clients of whom nothing is known
    overrides: Annotated[tuple[ClientOverride, ...], Meta(max_length=10_000)] = ()
    clouds: bool = True  # where cloud providers publish that their addresses are
    asn: Annotated[str, Meta(pattern="^/", max_length=4096)] | None = None
    """A database (MMDB) of autonomous systems, for overrides by `asn`."""


class DnsSpec(ZoneSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A zone whose `names` lead every client to the nearest healthy region."""

    zone: DomainName
    nameservers: Annotated[tuple[NameServer, ...], Meta(min_length=1, max_length=16)]
    names: Annotated[tuple[DomainName, ...], Meta(min_length=1, max_length=64)] = ("ai",)
    nets: Annotated[tuple[ClientNet, ...], Meta(max_length=100_000)] = ()
    records: Annotated[
        tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=10_000)
    ] = ()
    """Further records, each a line as in a zone file."""
    serve: bool = True  # by a server that is started with the platform

    @property
    def is_shared(self) -> bool:
        """Return whether clients of one place may get different regions."""
        return any(each.drain or each.weight != 1.0 for each in self.regions) or self.spread > 0.0


def client_mistakes(
    nameservers: Sequence[NameServer], nets: Sequence[ClientNet], zones: Mapping[str, str]
) -> Iterator[Mistake]:
    """Yield what the types cannot say of these; `zones` are those of residency, by region."""
    for i, server in enumerate(nameservers):
        yield from address_mistakes(f"nameservers[{i}].addresses", server.addresses)
    for i, net in enumerate(nets):
        try:
            ipaddress.ip_network(net.net)
        except ValueError as error:
            yield f"nets[{i}].net", str(error)
        if (net.region is None) == (net.coordinates is None):
            yield f"nets[{i}]", "give either `region` or `coordinates`"
        if net.residency is not None and net.residency not in zones.values():
            yield f"nets[{i}].residency", f"no region is in the zone {net.residency!r}"
        if net.region is not None and net.region not in zones:
            yield f"nets[{i}].region", f"there is no region {net.region!r}"


def setting_mistakes(spec: ZoneSettings, regions: Container[str]) -> Iterator[Mistake]:
    """Yield what the types cannot say of a zone's other settings."""
    named = [(f"regions[{i}].name", each.name) for i, each in enumerate(spec.regions)]
    named += [
        (f"overrides[{i}].region", each.region)
        for i, each in enumerate(spec.overrides)
        if each.region is not None
    ]
    if spec.default_region is not None:
        named.append(("default_region", spec.default_region))
    for where, name in named:
        if name not in regions:
            yield where, f"there is no region {name!r}"
    yield from duplicates("regions", [each.name for each in spec.regions])
    for i, override in enumerate(spec.overrides):
        if (override.country is None) == (override.asn is None):
            yield f"overrides[{i}]", "give either `country` or `asn`"
        if (override.region is None) == (override.coordinates is None):
            yield f"overrides[{i}]", "give either `region` or `coordinates`"
        if override.asn is not None and spec.asn is None:
            yield f"overrides[{i}].asn", "`asn` of the `dns` section has to name a database"
    for i, text in enumerate(spec.limits.exempt):
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            yield f"limits.exempt[{i}]", str(error)
            continue
        if network.version == 6 and network.prefixlen > 64:
            yield f"limits.exempt[{i}]", "an IPv6 network has at most 64 bits here"


def duplicates(section: str, names: Sequence[str]) -> Iterator[Mistake]:
    """Yield each name of a section that comes again."""
    seen = set()
    for i, name in enumerate(names):
        if name in seen:
            yield f"{section}[{i}].name", f"{name!r} is there twice"
        seen.add(name)


def address_mistakes(where: str, addresses: tuple[str, ...]) -> Iterator[Mistake]:
    for i, address in enumerate(addresses):
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            yield f"{where}[{i}]", str(error)
