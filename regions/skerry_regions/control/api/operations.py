"""Every operation of the control API: who answers it, what it takes and gives."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api import (
    account_routes,
    dns_routes,
    history_routes,
    machine_routes,
    model_routes,
    monitoring,
    platform,
    terraform_routes,
)
from skerry_regions.control.api.access import LIST, MINT, OBSERVE, OPERATE
from skerry_regions.control.api.api_tokens import ApiTokens, Rotation
from skerry_regions.control.api.described import (
    AFTER_ID,
    AFTER_SEQUENCE,
    BEFORE,
    ID,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    LIMIT,
    MERGE_PATCH,
    OBJECT,
    TEXT,
    exposed,
    operation,
    page,
)
from skerry_regions.control.api.requests import PREFIX
from skerry_regions.control.api.resources import PlannedResource, Resources, validate
from skerry_regions.control.desired.history import RevisionEntry
from skerry_regions.control.desired.resources import API_TOKEN, KINDS, ResourceKind
from skerry_regions.control.desired.revisions import Applied
from skerry_regions.control.desired.store import AuditEntry, EventEntry
from skerry_regions.control.desired.views import (
    AccountCaps,
    DnsAnswer,
    ModelJob,
    ModelRequest,
    ModelView,
    NodeView,
    PlatformStatus,
)
from skerry_regions.control.machines.host import MachineView
from skerry_regions.control.machines.join_tokens import JoinToken, JoinTokenSpec
from skerry_regions.control.reconcile.scraping import ScrapeGroup
from skerry_regions.operations import (
    JSON,
    Operation,
    Schema,
    document,
    parameter,
)


class ControlHealth(Struct):
    status: str


def of_kind(kind: ResourceKind) -> Iterator[Operation]:
    """Yield the operations of one kind of resource."""
    name, resource, is_token = kind.resource.__name__, kind.resource, kind is API_TOKEN
    handlers = ApiTokens(kind) if is_token else Resources(kind)
    read, write = (LIST, MINT) if is_token else (OBSERVE, OPERATE)
    collection, item = f"{PREFIX}/{kind.collection}", f"{PREFIX}/{kind.collection}/{{id}}"
    fields = ", ".join(sorted(set(kind.spec.__struct_fields__) - kind.fixed))
    yield page(
        f"/{kind.collection}", handlers.list_all, f"list{name}s", "All of them, in pages",
        resource, rights=read,
    )  # fmt: skip
    yield operation(
        "POST", collection, handlers.create, f"create{name}", "Create one", {201: resource},
        IDEMPOTENCY_KEY, body={JSON: kind.spec}, rights=write,
    )  # fmt: skip
    yield operation(
        "GET", item, handlers.get, f"get{name}", "Read one", {200: resource}, ID, rights=read
    )
    yield operation(
        "PATCH", item, handlers.update, f"update{name}", "Change one", {200: resource}, ID,
        IF_MATCH, body={MERGE_PATCH: OBJECT},
        body_note=f"A JSON merge patch (RFC 7386) of: {fields}.", rights=write,
    )  # fmt: skip
    yield operation(
        "DELETE", item, handlers.delete, f"delete{name}",
        "Delete one: 202 while it drains, 204 when it is gone", {202: resource, 204: None},
        ID, IF_MATCH, rights=write,
    )  # fmt: skip
    if isinstance(handlers, ApiTokens):
        yield operation(
            "POST", f"{item}/rotate", handlers.rotate, "rotateApiToken",
            "Give one another secret", {200: resource}, ID, IF_MATCH, body={JSON: Rotation},
            rights=write,
        )  # fmt: skip


HISTORY: Schema = {
    "type": "object",
    "required": ["items", "next"],
    "properties": {
        "items": {"type": "array", "items": RevisionEntry},
        "next": {"type": ["integer", "null"]},
    },
}


async def openapi(request: Request) -> Response:
    """Answer with this table in OpenAPI."""
    document = await asyncio.to_thread(_encoded_document)  # 0.1 s once, on a slow machine
    return Response(document, media_type=JSON)


OPERATIONS: tuple[Operation, ...] = (
    operation(
        "GET", "/healthz", platform.health, "health", "The process answers", {200: ControlHealth},
        rights=None,
    ),
    operation(
        "GET", f"{PREFIX}/openapi.json", openapi, "openapi", "This document", {200: OBJECT},
        rights=None,
    ),
    operation(
        "GET", f"{PREFIX}/status", platform.status, "platformStatus", "The platform at a glance",
        {200: PlatformStatus},
    ),
    exposed("/metrics", monitoring.metrics, "getMetrics", "The control plane's own metrics"),
    exposed(
        "/nodes/{id}/metrics", monitoring.node_metrics, "getNodeMetrics", "Those of one node", ID
    ),
    operation(
        "GET", f"{PREFIX}/prometheus_sd", monitoring.prometheus_sd, "prometheusTargets",
        "All that there is to be scraped, for `http_sd_configs`",
        {200: {"type": "array", "items": ScrapeGroup}},
    ),
    page("/nodes", platform.nodes, "listNodes", "What runs", NodeView),
    operation(
        "POST", f"{PREFIX}/nodes/{{id}}/drain", platform.drain, "drainNode",
        "Replace a node or an edge: it drains when its successor is ready", {202: NodeView}, ID,
    ),
    page("/events", platform.events, "listEvents", "What happened", EventEntry, AFTER_SEQUENCE),
    page(
        "/audit", platform.audit, "listAudit", "Who changed what", AuditEntry, AFTER_SEQUENCE,
        OBSERVE,
        parameter("newest", "query", TEXT, "`1`: the last entries, not the first."),
    ),
    operation(
        "POST", f"{PREFIX}/apply", history_routes.apply, "applyManifest",
        "Want what a manifest says, all of it or nothing", {200: Applied},
        body={JSON: history_routes.ManifestRequest},
    ),
    operation(
        "POST", f"{PREFIX}/delete", history_routes.delete, "deleteResources",
        "Want resources no more, all of them or none", {200: Applied},
        body={JSON: history_routes.DeleteRequest},
    ),
    operation(
        "POST", f"{PREFIX}/validate", validate, "validate",
        "Check what is to be written later: nothing is written", {204: None},
        body={JSON: PlannedResource}, rights=OBSERVE,
    ),
    operation(
        "GET", f"{PREFIX}/history", history_routes.history, "listHistory",
        "Revisions of what is wanted, newest first", {200: HISTORY}, BEFORE, LIMIT,
        parameter("kind", "query", TEXT, "Of resources, such as pool."),
        parameter("id", "query", TEXT, "Of one resource of the kind."),
    ),
    operation(
        "DELETE", f"{PREFIX}/idempotency_keys/{{key}}", history_routes.acknowledge,
        "forgetIdempotencyKey", "The answer has arrived: the key makes another resource again",
        {204: None}, parameter("key", "path", TEXT),
    ),
    operation(
        "POST", f"{PREFIX}/rollback", history_routes.rollback, "rollback",
        "Want what was wanted after a revision, all of it or nothing", {200: Applied},
        body={JSON: history_routes.RollbackRequest},
    ),
    *(each for kind in KINDS for each in of_kind(kind)),
    operation(
        "GET", f"{PREFIX}/dns_zones/{{id}}/contents", dns_routes.contents, "getDnsZoneContents",
        "All that a DNS server of the zone has to know, as a topology", {200: OBJECT, 304: None},
        ID, IF_NONE_MATCH,
    ),
    operation(
        "GET", f"{PREFIX}/dns_answer", dns_routes.answer, "getDnsAnswer", "What a zone answers now",
        {200: DnsAnswer},
        parameter("name", "query", TEXT, "The name that is asked for.", required=True),
        parameter("type", "query", TEXT, "Of records; A unless given."),
        parameter("client", "query", TEXT, "An address or network that the question comes from."),
    ),
    page(
        "/join_tokens", machine_routes.list_tokens, "listJoinTokens", "All of them, in pages",
        JoinToken,
    ),
    operation(
        "POST", f"{PREFIX}/join_tokens", machine_routes.create_token, "createJoinToken",
        "Let machines join", {201: JoinToken}, IDEMPOTENCY_KEY, body={JSON: JoinTokenSpec},
    ),
    operation(
        "GET", f"{PREFIX}/join_tokens/{{id}}", machine_routes.get_token, "getJoinToken",
        "Read one", {200: JoinToken}, ID,
    ),
    operation(
        "DELETE", f"{PREFIX}/join_tokens/{{id}}", machine_routes.delete_token, "deleteJoinToken",
        "No machine joins by it", {204: None}, ID,
    ),
    page("/machines", machine_routes.list_machines, "listMachines", "Who joined", MachineView),
    operation(
        "GET", f"{PREFIX}/machines/{{id}}", machine_routes.get_machine, "getMachine", "Read one",
        {200: MachineView}, ID,
    ),
    operation(
        "DELETE", f"{PREFIX}/machines/{{id}}", machine_routes.revoke_machine, "revokeMachine",
        "Shut one out", {200: MachineView}, ID,
    ),
    page(
        "/accounts", account_routes.list_accounts, "listAccounts",
        "What the tokens of each account may spend together", AccountCaps,
    ),
    operation(
        "PATCH", f"{PREFIX}/accounts/{{id}}", account_routes.set_caps, "setAccountCaps",
        "Change it", {200: AccountCaps}, ID, body={MERGE_PATCH: OBJECT},
        body_note="A JSON merge patch (RFC 7386) of: per_day, per_month.",
    ),
    page(
        "/models", model_routes.list_models, "listModels", "Models that this machine knows",
        ModelView, AFTER_ID, OBSERVE,
        parameter("known", "query", TEXT, "`1`: also those that a hub has."),
    ),
    operation(
        "POST", f"{PREFIX}/models", model_routes.install, "installModel",
        "Have a model: fetch it, or enter what is there", {202: ModelJob},
        body={JSON: ModelRequest},
    ),
    operation(
        "GET", f"{PREFIX}/models/{{id:path}}", model_routes.get_model, "getModel",
        "Read one, with what it takes of memory", {200: ModelView}, ID,
    ),
    operation(
        "DELETE", f"{PREFIX}/models/{{id:path}}", model_routes.remove_model, "removeModel",
        "Take one out, and delete what was downloaded", {204: None}, ID,
    ),
    page(
        "/model_jobs", model_routes.list_jobs, "listModelJobs", "What is being installed, and was",
        ModelJob,
    ),
    operation(
        "DELETE", f"{PREFIX}/model_jobs/{{id}}", model_routes.cancel_job, "cancelModelJob",
        "Have one end: what has arrived is kept for the next", {202: ModelJob}, ID,
    ),
    *(
        operation(
            method, f"{terraform_routes.STATES}{{name}}", terraform_routes.state, "", "", {},
            rights=None,
        )
        for method in terraform_routes.METHODS
    ),
)  # fmt: skip


@functools.cache
def _encoded_document() -> bytes:
    return msgspec.json.encode(openapi_document())


def openapi_document() -> dict[str, Any]:
    """Return the description of the whole API."""
    return document("Skerry control plane", OPERATIONS)
