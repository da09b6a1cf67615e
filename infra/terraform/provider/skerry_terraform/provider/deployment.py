"""`skerry_deployment`: a model served from pools."""

from __future__ import annotations

from skerry_terraform.kit.schema import Attr, Schema
from skerry_terraform.kit.values import BOOL, STRING, ListOf, SetOf
from skerry_terraform.provider.resource import (
    LABEL,
    WAIT_FOR_READY,
    ControlResource,
    common,
    timeouts,
    waits,
)

CONDITION = {
    "type": Attr(computed=True),
    "status": Attr(BOOL, computed=True),
    "reason": Attr(computed=True, doc="One word."),
    "message": Attr(computed=True, doc="A sentence."),
    "since": Attr(computed=True, doc="RFC 3339, UTC."),
}


class DeploymentResource(ControlResource):
    name = "deployment"
    collection = "deployments"
    schema = Schema(
        doc="A model served from pools. A new model rolls through them, and no stream is cut.",
        attributes=common(
            name=Attr(required=True, replace=True, check=LABEL, doc="A DNS label."),
            model=Attr(required=True, doc="Catalog id or alias."),
            pools=Attr(SetOf(STRING), required=True, doc="Ids; one of them has to decode."),
            system_prompts=Attr(
                ListOf(STRING), default=[], doc="Computed by every node before it is ready."
            ),
            status=Attr(computed=True, doc="pending, progressing, ready, degraded or draining."),
            regions=Attr(SetOf(STRING), computed=True, doc="Where a node of it is ready."),
            endpoints=Attr(SetOf(STRING), computed=True, doc="URLs of edges that offer it."),
            conditions=Attr(computed=True, nested=CONDITION, nesting="list"),
            **{WAIT_FOR_READY: waits("all its pools are ready")},
        ),
        blocks=timeouts("create", "update", "delete"),
    )
