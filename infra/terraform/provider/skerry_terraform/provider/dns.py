"""`skerry_dns_zone`, `skerry_dns_record`, and what a zone answers: `skerry_dns_answer`."""

from __future__ import annotations

from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import DataSource
from skerry_terraform.kit.schema import Attr, Block, Schema, each, one_of, whole
from skerry_terraform.kit.values import NUMBER, STRING, UNKNOWN, ListOf, Value
from skerry_terraform.provider.client import ControlPlane
from skerry_terraform.provider.refusals import RequestRefused, error_of
from skerry_terraform.provider.resource import ControlResource, Ctx, common

TYPES = (
    "A", "AAAA", "CAA", "CNAME", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR", "SRV", "SSHFP", "SVCB",
    "TLSA", "TXT",
)  # fmt: skip
MAX_TTL = 604_800  # seconds
DNS_PORT = 53

_AT_LEAST_ONE = each(lambda value: None, least=1)

NAME_SERVER = {
    "name": Attr(required=True, doc="In the zone, or a whole name that ends with a dot."),
    "addresses": Attr(ListOf(STRING), default=[], doc="Of one in the zone."),
}
NET = {
    "net": Attr(required=True, doc="Such as 203.0.113.0/24."),
    "region": Attr(optional=True, doc="That its clients are at; or coordinates."),
    "coordinates": Attr(ListOf(NUMBER), optional=True, doc="Latitude and longitude; degrees."),
    "residency": Attr(optional=True, doc="Zone that its clients must not be sent out of."),
}
SECONDARY = {
    "address": Attr(required=True, doc="IP address."),
    "port": Attr(NUMBER, default=DNS_PORT, check=whole(1, 65535)),
}


class DnsZoneResource(ControlResource):
    name = "dns_zone"
    collection = "dns_zones"
    schema = Schema(
        doc="A zone that `skerry dns --zone NAME` answers for.",
        attributes=common(
            name=Attr(required=True, replace=True, doc="In lower case, without a dot at its end."),
            names=Attr(
                ListOf(STRING), default=["ai"], doc="That lead each client to the nearest region."
            ),
            contact=Attr(default="hostmaster", doc="Mail address, its @ a dot."),
        ),
        blocks={
            "nameservers": Block(attributes=NAME_SERVER, min_items=1, doc="In order."),
            "nets": Block(attributes=NET, doc="Where clients are."),
            "secondaries": Block(attributes=SECONDARY, doc="Notified of a new serial."),
        },
    )


class DnsRecordResource(ControlResource):
    name = "dns_record"
    collection = "dns_records"
    schema = Schema(
        doc="All records of one name and type in a zone.",
        attributes=common(
            zone=Attr(required=True, replace=True, doc="Name of its zone."),
            name=Attr(required=True, replace=True, doc="Relative to the zone; @ is the zone."),
            type=Attr(required=True, replace=True, check=one_of(*TYPES)),
            ttl=Attr(NUMBER, default=300, check=whole(0, MAX_TTL), doc="Seconds."),
            values=Attr(
                ListOf(STRING), required=True, check=_AT_LEAST_ONE, doc="As in a zone file."
            ),
        ),
    )

    def id_of(self, values: Object) -> Value:
        parts = [values[name] for name in ("zone", "name", "type")]
        return UNKNOWN if UNKNOWN in parts else ":".join(parts)


class DnsAnswerDataSource(DataSource[ControlPlane]):
    """`skerry_dns_answer`."""

    name = "dns_answer"
    schema = Schema(
        doc="What a zone answers now to a client somewhere.",
        attributes={
            "name": Attr(required=True, doc="The name that is asked for, in full."),
            "type": Attr(optional=True, doc="Of records; A if not given."),
            "client": Attr(optional=True, doc="An address or network; nowhere if not given."),
            "zone": Attr(computed=True, doc="That the name is in."),
            "status": Attr(computed=True, doc="NOERROR or NXDOMAIN."),
            "ttl": Attr(NUMBER, computed=True, doc="Seconds."),
            "values": Attr(ListOf(STRING), computed=True, doc="As in a zone file."),
            "scope": Attr(NUMBER, computed=True, doc="Bits of the client's address that count."),
            "regions": Attr(ListOf(STRING), computed=True, doc="By place: best first."),
        },
    )

    def read(self, ctx: Ctx) -> Object:
        asked = {name: value for name, value in ctx.config.items() if value is not None}
        try:
            found = ctx.client.dns_answer(asked)
        except RequestRefused as refused:
            raise error_of(refused, self.name, self.schema.attributes) from None
        read = {name: found[name] for name, attr in self.schema.attributes.items() if attr.computed}
        return ctx.config | read
