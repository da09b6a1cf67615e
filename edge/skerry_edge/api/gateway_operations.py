"""Operations of AI Gateway's routes, and what of a Worker's `env.AI` is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.convertors import StringConvertor, register_url_convertor

from skerry_edge.api.documents.openapi import (
    ACCOUNT,
    BINDING,
    NATIVE,
    OPENAI,
    READ,
    RUN,
    operation,
    result,
)
from skerry_edge.api.edge_request import Handler
from skerry_edge.api.openai import chat, embeddings
from skerry_edge.api.responses import responses
from skerry_edge.api.workers_ai import binding, gateway, native
from skerry_regions.operations import Errors, Operation

GATEWAY = "/v1/{account_id:account}/{gateway}"
LOG = "/ai-gateway/gateways/{gateway}/logs/{id}"
ANY: dict[str, Any] = {}


class AccountConvertor(StringConvertor):
    """An account's id in a path whose other names may mean something else."""

    regex = "[0-9a-f]{32}"


register_url_convertor("account", AccountConvertor())


def _run(path: str, handler: Handler, errors: Errors = NATIVE) -> Operation:
    return operation(
        "POST", path, handler, "", "", ANY, scopes=RUN, errors=errors, answers=result, counted=True
    )


def _other(method: str, path: str, handler: Handler) -> Operation:
    return operation(method, path, handler, "", "", ANY, scopes=(*RUN, *READ), answers=result)


def _operations() -> Iterator[Operation]:
    yield _run("/ai-gateway/run", binding.run, BINDING)
    yield _run("/ai-gateway/universal/run/{gateway}", gateway.in_gateway(gateway.universal))
    yield _run(GATEWAY, gateway.in_gateway(gateway.universal))
    for path, handler in (
        ("compat/chat/completions", gateway.compat),
        ("workers-ai/v1/chat/completions", chat.chat_completions),
        ("workers-ai/v1/embeddings", embeddings.create),
        ("workers-ai/v1/responses", responses.create),
    ):
        yield _run(f"{GATEWAY}/{path}", gateway.in_gateway(handler), OPENAI)
    yield _run(f"{GATEWAY}/workers-ai/{{model:path}}", gateway.in_gateway(native.run))
    yield _other("GET", "/ai-gateway/gateways/{gateway}/url/{provider:path}", gateway.url)
    yield _other("GET", LOG, gateway.log)
    yield _other("PATCH", LOG, gateway.log)
    for prefix in ("/to-everything/markdown", f"{ACCOUNT}/ai/tomarkdown"):
        yield _other("GET", f"{prefix}/supported", gateway.markdown_formats)
    yield _other("POST", "/to-everything/markdown/transformer", gateway.markdown)
    yield _other("POST", f"{ACCOUNT}/ai/tomarkdown", gateway.markdown)
    for method in ("GET", "POST"):
        yield _other(method, "/autorag/{rest:path}", gateway.autorag)


OPERATIONS = tuple(_operations())
