"""A DNS zone as an operator writes it down, and where its clients are."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
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
    """A server that is told when the zone has changed."""

    address: IPAddress
    port: Annotated[int, Meta(ge=1, le=65535)] = 53


class DnsSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A zone whose `names` lead every client to the nearest healthy region."""

    zone: DomainName
    nameservers: Annotated[tuple[NameServer, ...], Meta(min_length=1, max_length=16)]
    names: Annotated[tuple[DomainName, ...], Meta(min_length=1, max_length=64)] = ("ai",)
    contact: DomainName = "hostmaster"
    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 5353
    nets: Annotated[tuple[ClientNet, ...], Meta(max_length=100_000)] = ()
    records: Annotated[
        tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=10_000)
    ] = ()
    """Further records, each a line as in a zone file."""
    geo: Annotated[str, Meta(pattern="^/", max_length=4096)] | None = None
    """A database (MMDB) of where other clients are; absent: that of `skerry geo install`."""
    secondaries: Annotated[tuple[Secondary, ...], Meta(max_length=16)] = ()


def client_mistakes(
    nameservers: Sequence[NameServer], nets: Sequence[ClientNet], zones: Mapping[str, str]
) -> Iterator[Mistake]:
    """What the types cannot say of these; `zones` are those of residency, by region."""
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


def address_mistakes(where: str, addresses: tuple[str, ...]) -> Iterator[Mistake]:
    for i, address in enumerate(addresses):
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            yield f"{where}[{i}]", str(error)
