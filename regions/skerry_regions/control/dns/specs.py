"""What an operator may want of DNS: zones, and sets of static records in them.

A zone is the `dns` section of a topology, but for its records: those are resources of their own,
one for each name and type.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry_regions.topology.zone_spec import ClientNet, NameServer, ZoneSettings

MAX_NETS = 10_000  # of one zone
MAX_VALUES = 100  # of one set of records
MAX_RECORDS = 10_000  # of one zone, all sets together

ZoneName = Annotated[
    str, Meta(pattern=r"^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63}){0,20}$", max_length=253)
]
RecordName = Annotated[
    str, Meta(pattern=r"^(@|(\*|[a-z0-9_-]{1,63})(\.[a-z0-9_-]{1,63}){0,20})$", max_length=253)
]
RecordType = Literal[
    "A", "AAAA", "CAA", "CNAME", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR", "SRV", "SSHFP", "SVCB",
    "TLSA", "TXT",
]  # fmt: skip


class DnsZoneSpec(ZoneSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A zone that `skerry dns --zone NAME` answers for. `names` lead clients to their regions."""

    name: ZoneName
    nameservers: Annotated[tuple[NameServer, ...], Meta(min_length=1, max_length=16)]
    names: Annotated[tuple[RecordName, ...], Meta(min_length=1, max_length=64)] = ("ai",)
    nets: Annotated[tuple[ClientNet, ...], Meta(max_length=MAX_NETS)] = ()
    serve: bool = False  # by a server that the control plane starts on its machine


class DnsRecordSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All records of one name and type."""

    zone: ZoneName
    name: RecordName  # relative to the zone; "@" is the zone itself
    type: RecordType
    ttl: Annotated[int, Meta(ge=0, le=604_800)] = 300  # seconds
    values: Annotated[
        tuple[Annotated[str, Meta(pattern="^[ -~]{1,4096}$")], ...],
        Meta(min_length=1, max_length=MAX_VALUES),
    ]
    """Each as in a zone file: `192.0.2.7`, `10 mail`, `"v=spf1 -all"`."""
