"""`skerry_dns_zone`, `skerry_dns_record`, and what a zone answers: `skerry_dns_answer`."""

from __future__ import annotations

from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import DataSource
from skerry_terraform.kit.schema import Attr, Block, Schema, between, each, one_of, whole
from skerry_terraform.kit.values import BOOL, NUMBER, STRING, UNKNOWN, ListOf, Value
from skerry_terraform.provider.client import ControlPlane
from skerry_terraform.provider.refusals import explained
from skerry_terraform.provider.resource import ControlResource, Ctx, common

TYPES = (
    "A", "AAAA", "CAA", "CNAME", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR", "SRV", "SSHFP", "SVCB",
    "TLSA", "TXT",
)  # fmt: skip
MAX_TTL = 604_800  # seconds
DNS_PORT = 53


def _defaults(attributes: dict[str, Attr]) -> Object:
    return {name: attr.default for name, attr in attributes.items()}


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
HEALTH = {
    "interval": Attr(NUMBER, default=1.5, check=between(0.5, 60), doc="Seconds between probes."),
    "failures": Attr(NUMBER, default=3, check=whole(1, 20), doc="In a row: it is left."),
    "successes": Attr(NUMBER, default=5, check=whole(1, 20), doc="In a row: it is taken again."),
    "busy_seconds": Attr(
        NUMBER, default=2, check=between(0.05, 600), doc="Of waiting work: it is busy."
    ),
}
LIMITS = {
    "responses_per_second": Attr(
        NUMBER, default=20, check=whole(1, 1_000_000), doc="Alike, for one client subnet."
    ),
    "subnets_per_second": Attr(
        NUMBER, default=1000, check=whole(1, 1_000_000), doc="For all subnets of its queries."
    ),
    "proofs_per_second": Attr(
        NUMBER, default=100, check=whole(1, 100_000), doc="Signatures for names that are not."
    ),
    "exempt": Attr(ListOf(STRING), default=[], doc="Networks without limits."),
}
SHARE = {
    "name": Attr(required=True, doc="Of a region."),
    "weight": Attr(NUMBER, default=1, check=between(0, 1000), doc="Among equally near ones."),
    "drain": Attr(
        NUMBER, default=0, check=whole(0, 100), doc="Percent of clients that get the next one."
    ),
}
OVERRIDE = {
    "country": Attr(optional=True, doc="ISO 3166-1, such as DE; or asn."),
    "asn": Attr(NUMBER, optional=True, check=whole(1, 4_294_967_295), doc="Autonomous system."),
    "region": Attr(optional=True, doc="That its clients are at; or coordinates."),
    "coordinates": Attr(ListOf(NUMBER), optional=True, doc="Latitude and longitude; degrees."),
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
            serve=Attr(BOOL, default=False, doc="By a server on the control plane's machine, too."),
            host=Attr(default="127.0.0.1", doc="Address that its servers listen on."),
            port=Attr(NUMBER, default=5353, check=whole(0, 65535), doc="UDP and TCP."),
            ttl=Attr(
                NUMBER, default=30, check=whole(5, 86_400), doc="Seconds, of answers by place."
            ),
            spread=Attr(
                NUMBER, default=0, check=between(0, 1), doc="Seconds: so near is equally near."
            ),
            default_region=Attr(optional=True, doc="For clients of whom nothing is known."),
            clouds=Attr(BOOL, default=True, doc="Use what clouds publish of their addresses."),
            geo=Attr(optional=True, doc="Database (MMDB) of where clients are, at each server."),
            asn=Attr(optional=True, doc="Database (MMDB) of autonomous systems, at each server."),
            health=Attr(
                nested=HEALTH, default=_defaults(HEALTH), doc="When a region is left, and taken."
            ),
            limits=Attr(
                nested=LIMITS, default=_defaults(LIMITS), doc="Of networks without a cookie."
            ),
            regions=Attr(
                nested=SHARE, nesting="list", default=[], doc="How many clients regions take."
            ),
            overrides=Attr(
                nested=OVERRIDE, nesting="list", default=[], doc="Where clients are, whatever data."
            ),
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
        with explained(self.name, self.schema.attributes):
            found = ctx.client.dns_answer(asked)
        read = {name: found[name] for name, attr in self.schema.attributes.items() if attr.computed}
        return ctx.config | read
