"""What must agree in zones and their records before a server is sent them.

Whatever passes here is a zone that can be served. dnspython, which reads records, is imported when
there are some: a control plane without it refuses zones and records, and nothing else.
"""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from skerry_regions.control.dns.specs import MAX_RECORDS, DnsRecordSpec, DnsZoneSpec
from skerry_regions.control.errors import Conflict, Invalid
from skerry_regions.topology.zone_spec import client_mistakes, setting_mistakes

if TYPE_CHECKING:
    import dns.rdata

BY_PLACE = frozenset({"A", "AAAA", "HTTPS"})  # types that a name answered by place has already
APEX = "@"
DEFAULT_TTL = 86_400  # seconds, of a line that says none
MISSING = (
    "DNS is not installed beside the control plane: `pip install '.[dns]'` in Skerry's repository"
)


def require_dns() -> None:
    """Raise Conflict where dnspython is not installed."""
    try:
        importlib.import_module("dns")
    except ModuleNotFoundError:
        raise Conflict(MISSING) from None


def check_record(spec: DnsRecordSpec) -> None:
    """Check a set of records by itself. Raises Invalid."""
    if spec.name == APEX and spec.type in ("CNAME", "NS", "DS"):
        raise Invalid(f"the zone itself takes no {spec.type} record of its own", field="type")
    if spec.type == "CNAME" and len(spec.values) > 1:
        raise Invalid("a name is an alias of one other name", field="values[1]")
    seen = set()
    for i, value in enumerate(spec.values):
        record = _parsed(spec, value, f"values[{i}]")
        if record in seen:
            raise Invalid(f"{value!r} is there twice", field=f"values[{i}]")
        seen.add(record)


def lines_of(spec: DnsRecordSpec) -> list[str]:
    """Return the records as lines of a zone file, with every name in full."""
    return [
        f"{spec.name} {spec.ttl} IN {spec.type} {_parsed(spec, value, f'values[{i}]')}"
        for i, value in enumerate(spec.values)
    ]


def records_of(zone: str, lines: Iterable[str]) -> list[DnsRecordSpec]:
    """Return sets of records out of lines of a zone file. Raises Invalid, or Conflict."""
    require_dns()
    import dns.exception
    import dns.name
    import dns.rdatatype
    import dns.zonefile

    origin = dns.name.from_text(zone)
    try:
        rrsets = dns.zonefile.read_rrsets(
            "\n".join(lines),
            rdclass=None,  # it may be said
            origin=origin,
            relativize=False,
            default_ttl=DEFAULT_TTL,
        )
    except (dns.exception.DNSException, ValueError) as error:
        raise Invalid(f"records: {error}", field="records") from None
    return [
        _converted(
            zone=zone,
            name=rrset.name.relativize(origin).to_text().lower(),
            type=dns.rdatatype.to_text(rrset.rdtype),
            ttl=rrset.ttl,
            values=[each.to_text() for each in rrset],
        )
        for rrset in rrsets
    ]


def _converted(**values: Any) -> DnsRecordSpec:
    """Raises Invalid."""
    try:
        return msgspec.convert(values, DnsRecordSpec)
    except msgspec.ValidationError as error:
        where = f"{values['name']} {values['type']}"
        raise Invalid(f"records: {where}: {error}", field="records") from None


def _parsed(spec: DnsRecordSpec, value: str, field: str) -> dns.rdata.Rdata:
    require_dns()
    import dns.exception
    import dns.name
    import dns.rdata
    import dns.rdataclass
    import dns.rdatatype

    origin = dns.name.from_text(spec.zone)
    rdtype = dns.rdatatype.from_text(spec.type)
    try:
        return dns.rdata.from_text(
            dns.rdataclass.IN, rdtype, value, origin=origin, relativize=False
        )
    except (dns.exception.DNSException, ValueError) as error:
        raise Invalid(f"no {spec.type} record: {error or value}", field=field) from None


def check_zone(
    spec: DnsZoneSpec, zones: Mapping[str, str], records: Iterable[DnsRecordSpec]
) -> None:
    """Check a zone against regions (`zones` are those of residency, by region) and what is in it.

    Raises Invalid, or Conflict for a name that has static records or without dnspython.
    """
    require_dns()
    for path, mistake in client_mistakes(spec.nameservers, spec.nets, zones):
        raise Invalid(f"{path}: {mistake}", field=path)
    for path, mistake in setting_mistakes(spec, zones):
        raise Invalid(f"{path}: {mistake}", field=path)
    for i, secondary in enumerate(spec.secondaries):
        try:
            ipaddress.ip_address(secondary.address)
        except ValueError as error:
            raise Invalid(str(error), field=f"secondaries[{i}].address") from None
    for i, name in enumerate(spec.names):
        if name in spec.names[:i]:
            raise Invalid(f"{name!r} is there twice", field=f"names[{i}]")
        if name.startswith("*"):
            raise Invalid("no wildcard is answered by place", field=f"names[{i}]")
    for record in records:
        if record.name in spec.names and record.type in BY_PLACE | {"CNAME"}:
            raise Conflict(
                f"{record.name!r} has {record.type} records of its own",
                field=f"names[{spec.names.index(record.name)}]",
            )


def regions_of(spec: DnsZoneSpec) -> set[str | None]:
    """Return the regions that a zone's settings name."""
    named = {net.region for net in spec.nets} | {each.region for each in spec.overrides}
    return named | {each.name for each in spec.regions} | {spec.default_region}


def check_beside(spec: DnsRecordSpec, zone: DnsZoneSpec, others: Iterable[DnsRecordSpec]) -> None:
    """Check a set of records against its zone and the other sets in it. Raises Invalid or
    Conflict."""
    if spec.name in zone.names and spec.type in BY_PLACE | {"CNAME"}:
        raise Conflict(f"{spec.name!r} is answered by place", field="name")
    left = MAX_RECORDS - len(spec.values)
    for other in others:
        left -= len(other.values)
        if left < 0:
            raise Conflict(f"a zone takes {MAX_RECORDS} records", field="values")
        if other.name != spec.name or other.type == spec.type:
            continue
        if "CNAME" in (spec.type, other.type):
            raise Conflict(f"{spec.name!r} has {other.type} records too", field="type")
