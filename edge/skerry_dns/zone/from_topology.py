"""A zone out of a topology file."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import dns.exception
import dns.name

from skerry_dns.zone.place_records import lines_of_regions
from skerry_dns.zone.zone import DAY, NEGATIVE_TTL, Zone
from skerry_dns.zone.zone_file import ZoneError
from skerry_regions.geo.places import Places
from skerry_regions.topology.zone_spec import DnsSpec

REFRESH, RETRY, EXPIRE = 7200, 900, 1_209_600  # seconds; for secondaries


def origin_of(spec: DnsSpec) -> dns.name.Name:
    """Return the zone's name. Raises `ZoneError`."""
    return _named(spec.zone, dns.name.root)


def zone_of(spec: DnsSpec, places: Places, serial: int, further: Sequence[str] = ()) -> Zone:
    """Return the zone of a topology's `dns` section, with `further` records. Raises `ZoneError`."""
    origin = origin_of(spec)
    contact = spec.contact if "." in spec.contact else f"{spec.contact}.{origin}"
    lines = [
        f"$TTL {DAY}",
        f"@ IN SOA {spec.nameservers[0].name} {contact} "
        f"{serial} {REFRESH} {RETRY} {EXPIRE} {NEGATIVE_TTL}",
    ]
    for server in spec.nameservers:
        lines.append(f"@ IN NS {server.name}")
        lines += [f"{server.name} IN {_type_of(each)} {each}" for each in server.addresses]
    names = [_named(name, origin) for name in spec.names]
    lines += [*spec.records, *further, *lines_of_regions(places, names, spec.ttl)]
    return Zone("\n".join(lines) + "\n", origin, frozenset(names), geo_ttl=spec.ttl)


def _named(text: str, origin: dns.name.Name) -> dns.name.Name:
    try:
        return dns.name.from_text(text, origin)
    except dns.exception.DNSException as error:  # an empty label, or a long one
        raise ZoneError(f"{text!r} is no name: {error}") from None


def _type_of(address: str) -> str:
    return "A" if ipaddress.ip_address(address).version == 4 else "AAAA"
