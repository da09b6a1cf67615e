"""`skerry_edge_node`: a gateway that clients call."""

from __future__ import annotations

from skerry_terraform.kit.schema import Attr, Schema, matching, one_of, whole
from skerry_terraform.kit.values import BOOL, NUMBER, STRING, ListOf
from skerry_terraform.provider.resource import (
    LABEL,
    WAIT_FOR_READY,
    ControlResource,
    common,
    timeouts,
    waits,
)


class EdgeNodeResource(ControlResource):
    name = "edge_node"
    collection = "edge_nodes"
    schema = Schema(
        doc="A gateway. It runs once there is a pool with a model to offer.",
        attributes=common(
            name=Attr(required=True, replace=True, check=LABEL, doc="A DNS label."),
            region=Attr(required=True, replace=True, doc="Name of its region."),
            host=Attr(default="127.0.0.1", doc="IP address that it listens on."),
            port=Attr(
                NUMBER, default=0, check=whole(0, 65535), doc="0: a free one, which it keeps."
            ),
            addresses=Attr(
                ListOf(STRING), default=[], doc="Where clients reach it, if not at host: for DNS."
            ),
            hosts=Attr(
                ListOf(STRING),
                default=[],
                doc="Names that it answers to, beside its address; none: to all. A change starts "
                "it again.",
            ),
            tls_cert=Attr(
                optional=True,
                doc="PEM file of the control plane's machine: its certificate, with its chain.",
            ),
            tls_key=Attr(optional=True, doc="PEM file of the certificate's key."),
            public_url=Attr(
                optional=True,
                check=matching(r"https?://[^/?#\s]+", "http:// or https://, and a host"),
                doc="What clients are given, if not host and port.",
            ),
            placement=Attr(
                default="cost",
                check=one_of("cost", "nearest", "round-robin"),
                doc="Where requests go: by cost, or, to compare, by a plain rule.",
            ),
            console=Attr(
                default="loopback",
                check=one_of("off", "loopback", "on"),
                doc="Whom its pages are shown to: none, who is on its machine, or whoever comes.",
            ),
            draining=Attr(BOOL, default=False, doc="End as its streams do, and stay away."),
            url=Attr(computed=True, doc="Where clients reach it; empty before it first ran."),
            status=Attr(computed=True, doc="pending, progressing, ready, degraded or draining."),
            **{WAIT_FOR_READY: waits("it runs")},
        ),
        blocks=timeouts("create", "update", "delete"),
    )
