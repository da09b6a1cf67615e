"""`skerry_routing`: how requests find their way."""

from __future__ import annotations

from skerry_terraform.kit.schema import Attr, Schema, between, one_of
from skerry_terraform.kit.values import NUMBER
from skerry_terraform.provider.resource import ControlResource, common

EMULATE = {"rtt": Attr(default="links", check=one_of("links"), doc="As paths say.")}
STEER = {
    "policy": Attr(
        required=True, check=one_of("advise", "redirect"), doc="By Alt-Svc, or by a 307."
    ),
    "margin": Attr(
        NUMBER, default=0.03, check=between(0, 10), doc="Seconds that the other is nearer."
    ),
    "drain_seconds": Attr(
        NUMBER, default=4, check=between(0, 60), doc="That an edge which ends still says so."
    ),
}
ROUTER = {
    "candidates": Attr(
        default="indexed",
        check=one_of("all", "indexed"),
        doc="Which nodes of a large region are priced.",
    )
}


class RoutingResource(ControlResource):
    name = "routing"
    collection = "routing"
    schema = Schema(
        doc="How requests find their way. There is one; a change replaces edges, one by one.",
        attributes=common(
            name=Attr(default="platform", replace=True, check=one_of("platform")),
            emulate=Attr(
                nested=EMULATE,
                optional=True,
                doc="Distances between regions that are all on one machine; for trials.",
            ),
            steer=Attr(
                nested=STEER, optional=True, doc="Send clients on who are nearer to another edge."
            ),
            router=Attr(
                nested=ROUTER, default={"candidates": "indexed"}, doc="How edges choose nodes."
            ),
        ),
    )
