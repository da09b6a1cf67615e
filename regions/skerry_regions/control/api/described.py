"""What operations of the control API have in common: parameters, refusals, forms of answers."""

from __future__ import annotations

import dataclasses

import msgspec
from msgspec import Struct

from skerry_regions.control.api.access import OBSERVE, OPERATE
from skerry_regions.control.api.requests import (
    DEFAULT_LIMIT,
    MAX_KEY_LENGTH,
    MAX_LIMIT,
    PREFIX,
)
from skerry_regions.control.errors import ERRORS, ControlError, ErrorBody
from skerry_regions.operations import (
    JSON,
    Content,
    Errors,
    Handler,
    Operation,
    Outcome,
    Schema,
    parameter,
)

MERGE_PATCH = "application/merge-patch+json"
TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}

AFTER_ID = parameter("after", "query", TEXT, "`next` of the page before.")
AFTER_SEQUENCE = AFTER_ID | {"schema": {"type": "integer", "minimum": 0}}
BEFORE = parameter(
    "before", "query", AFTER_SEQUENCE["schema"], "`next` of the page before: a revision."
)
LIMIT = parameter(
    "limit",
    "query",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "Items of a page.",
)
ID = parameter("id", "path", TEXT)
IF_MATCH = parameter(
    "If-Match", "header", TEXT, "The etag it was read with: 412 when it was changed since."
)
IF_NONE_MATCH = parameter(
    "If-None-Match", "header", TEXT, "The etag that is known: 304 while nothing has changed."
)
IDEMPOTENCY_KEY = parameter(
    "Idempotency-Key",
    "header",
    TEXT | {"minLength": 1, "maxLength": MAX_KEY_LENGTH},
    "Sent again within a day, the same request gets the same answer.",
)


def _encoded(error: ControlError, request_id: str) -> bytes:
    return error.body()


REFUSALS = Errors(
    answers={
        kind.status: Outcome((kind.__doc__ or "").strip(), {JSON: ErrorBody}) for kind in ERRORS
    },
    encode=_encoded,
)


def _prepare(struct: type[Struct]) -> None:
    """Have msgspec work out a type's fields now.

    It does so when it first decodes one, and msgspec 0.22 ends the process (SIGSEGV) where two
    threads do that at once. Stored resources are decoded on several.
    """
    msgspec.json.Decoder(struct)


def operation(
    method: str,
    path: str,
    handler: Handler,
    id: str,
    summary: str,
    answers: dict[int, Schema],
    *parameters: Schema,
    body: Content | None = None,
    body_note: str = "",
    rights: tuple[str, ...] | None = OPERATE,
) -> Operation:
    """Return an operation whose good answers are JSON; of the schema None without a body.

    Who reads the platform may get, who operates it may do all else, unless `rights` say otherwise.
    """
    if rights is OPERATE and method == "GET":
        rights = OBSERVE
    for schema in (body or {}).values():
        if isinstance(schema, type):
            _prepare(schema)
    contents = {status: {JSON: schema} if schema else {} for status, schema in answers.items()}
    return Operation(
        method=method, path=path, handler=handler, scopes=rights, errors=REFUSALS, id=id,
        summary=summary, parameters=parameters, body=body, body_note=body_note, answers=contents,
    )  # fmt: skip


def exposed(path: str, handler: Handler, id: str, summary: str, *parameters: Schema) -> Operation:
    """Return an operation that answers with metrics, as Prometheus reads them."""
    made = operation("GET", f"{PREFIX}{path}", handler, id, summary, {}, *parameters)
    return dataclasses.replace(made, answers={200: {"text/plain": TEXT}})


def page(
    path: str,
    handler: Handler,
    id: str,
    summary: str,
    item: type[Struct],
    after: Schema = AFTER_ID,
    rights: tuple[str, ...] = OBSERVE,
    *more: Schema,
) -> Operation:
    """Return an operation that lists items in pages; `more` are its further parameters."""
    properties = {
        "items": {"type": "array", "items": item},
        "next": {"type": [after["schema"]["type"], "null"]},
    }
    schema = {"type": "object", "required": ["items", "next"], "properties": properties}
    return operation(
        "GET",
        f"{PREFIX}{path}",
        handler,
        id,
        summary,
        {200: schema},
        after,
        LIMIT,
        *more,
        rights=rights,
    )
