"""`skerry_pool`: equal nodes of one region."""

from __future__ import annotations

from typing import get_args

from skerry.runners import MAX_RANKS, RUNNERS, FloatsForm, KVForm
from skerry_terraform.kit.diagnostics import Diagnostics
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.schema import Attr, Schema, above, between, one_of, whole
from skerry_terraform.kit.values import BOOL, NUMBER, STRING, UNKNOWN, ListOf, Value
from skerry_terraform.provider.resource import (
    LABEL,
    WAIT_FOR_READY,
    ControlResource,
    common,
    timeouts,
    waits,
)

ROLES = ("prefill", "decode", "hybrid")
LAUNCHERS = ("local", "machines", "kubernetes", "ray")
MAX_REPLICAS = 1000
MAX_SLO_SECONDS = 3600
PARALLEL = {
    "tensor": Attr(
        NUMBER, default=1, check=whole(1, MAX_RANKS), doc="Ranks that share each layer."
    ),
    "pipeline": Attr(NUMBER, default=1, check=whole(1, MAX_RANKS), doc="Stages of layers."),
    "stages": Attr(
        ListOf(STRING),
        default=[],
        doc="HOST:PORT of machines that run `skerry stage`, one for each rank of a pipeline after "
        "the first; none: they are processes of the node's machine.",
    ),
}


def pool_id(region: str, name: str) -> str:
    return f"{region}-{name}"


class PoolResource(ControlResource):
    name = "pool"
    collection = "pools"
    schema = Schema(
        doc="Equal nodes of one region: `replicas` of them, or with `max_replicas` as many as "
        "demand asks for. The model is its own, or that of the deployment that names it.",
        attributes=common(
            name=Attr(required=True, replace=True, check=LABEL, doc="A DNS label."),
            region=Attr(required=True, replace=True, doc="Name of its region."),
            role=Attr(
                required=True, replace=True, check=one_of(*ROLES), doc="prefill, decode or hybrid."
            ),
            model=Attr(optional=True, doc="Catalog id or alias."),
            runner=Attr(default="numba", check=one_of(*RUNNERS), doc=f"{', '.join(RUNNERS)}."),
            replicas=Attr(
                NUMBER,
                optional=True,
                check=whole(0, MAX_REPLICAS),
                doc="Nodes; 1 if neither this nor max_replicas is given.",
            ),
            min_replicas=Attr(
                NUMBER, optional=True, check=whole(0, MAX_REPLICAS), doc="With max_replicas; or 0."
            ),
            max_replicas=Attr(
                NUMBER, optional=True, check=whole(1, MAX_REPLICAS), doc="It scales by itself."
            ),
            target_queue_seconds=Attr(
                NUMBER,
                default=1,
                check=above(0, MAX_SLO_SECONDS),
                doc="Scale up when more work than this waits.",
            ),
            target_ttft_seconds=Attr(
                NUMBER,
                default=2,
                check=above(0, MAX_SLO_SECONDS),
                doc="p95 of the time to the first token.",
            ),
            target_itl_seconds=Attr(
                NUMBER,
                default=0.2,
                check=above(0, MAX_SLO_SECONDS),
                doc="p95 of the time between tokens.",
            ),
            idle_seconds=Attr(
                NUMBER, default=300, check=between(1, 86_400), doc="Before scaling down."
            ),
            launcher=Attr(
                default="local",
                check=one_of(*LAUNCHERS),
                doc="Where nodes are started: local, beside the control plane; machines, on hosts "
                "of their region; kubernetes, on pods of the control plane's cluster; ray, on the "
                "Ray cluster of their region.",
            ),
            threads=Attr(NUMBER, optional=True, check=whole(1, 1024), doc="Of a node; its share."),
            memory=Attr(optional=True, doc="Of its host that a node takes, such as 16GiB."),
            gpus=Attr(NUMBER, default=0, check=whole(0, 64), doc="Of its host that a node takes."),
            kv_blocks=Attr(
                NUMBER, optional=True, check=whole(1, 1 << 24), doc="Of a node, of 64 tokens."
            ),
            streams=Attr(
                NUMBER,
                optional=True,
                check=whole(1, 1024),
                doc="Of a node, at once; as its device has room for.",
            ),
            step_tokens=Attr(
                NUMBER,
                optional=True,
                check=whole(64, 65_536),
                doc="Of a step at most; as the device has room for.",
            ),
            draft_tokens=Attr(
                NUMBER,
                optional=True,
                check=whole(0, 64),
                doc="Of a stream, tried in a step; 8, and 0 where steps overlap.",
            ),
            file_tier=Attr(optional=True, doc="Disk of a node for KV, such as 4GiB, or none."),
            pin_share=Attr(
                NUMBER,
                optional=True,
                check=between(0, 1),
                doc="Of a node's KV, that one account may keep cached; a quarter.",
            ),
            weights=Attr(
                optional=True,
                check=one_of(*get_args(FloatsForm)),
                doc="What floats of weight files are kept in: keep; on numba q8_0, q4_1 or q4_0; "
                "by torch on a GPU int8, int4 or fp8.",
            ),
            kv=Attr(
                optional=True,
                check=one_of(*get_args(KVForm)),
                doc="What KV is kept in by torch on a GPU: int8 or fp8; bfloat16.",
            ),
            parallel=Attr(
                nested=PARALLEL,
                optional=True,
                doc="Over how many ranks a node divides the model; as its devices need to hold it.",
            ),
            deletion_protection=Attr(BOOL, default=False, doc="Refuse to delete it."),
            status=Attr(computed=True, doc="pending, progressing, ready, degraded or draining."),
            desired_replicas=Attr(NUMBER, computed=True, doc="What it is scaled to."),
            ready_replicas=Attr(NUMBER, computed=True, doc="Nodes that serve."),
            **{WAIT_FOR_READY: waits("all its nodes run and are of the new spec")},
        ),
        blocks=timeouts("create", "update", "delete"),
    )

    def id_of(self, values: Object) -> Value:
        region, name = values["region"], values["name"]
        return UNKNOWN if UNKNOWN in (region, name) else pool_id(region, name)

    def validate(self, config: Object, diagnostics: Diagnostics) -> None:
        least, most = config["min_replicas"], config["max_replicas"]
        if most is None and least not in (None, UNKNOWN):
            diagnostics.error(
                "Missing max_replicas", "min_replicas needs max_replicas", ("min_replicas",)
            )
        replicas = config["replicas"]
        if UNKNOWN not in (most, replicas) and None not in (most, replicas):
            diagnostics.error(
                "Invalid value for replicas",
                "replicas and max_replicas exclude each other",
                ("replicas",),
            )
        if isinstance(least, int) and isinstance(most, int) and least > most:
            diagnostics.error(
                "Invalid value for min_replicas",
                f"{least} is above max_replicas, {most}",
                ("min_replicas",),
            )
