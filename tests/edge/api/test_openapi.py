"""/openapi.json: every route is described, every description served, and answers are as it says."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, CHAT, Deployment

from skerry_edge.api import gateway_operations
from skerry_edge.api.documents.openapi import ACCOUNT as ACCOUNT_PATH
from skerry_edge.api.documents.openapi import ANTHROPIC, BINDING, NATIVE, OPENAI
from skerry_edge.api.operations import OPERATIONS, errors_of, openapi_document
from skerry_regions.operations import Errors, Operation, routes

# Served and not described: other names of what is described, and what is not JSON.
UNDESCRIBED = {
    "/metrics",
    "/openapi.json",
    "/ai-api/models/search",
    *(each.path.replace(":path}", "}") for each in gateway_operations.OPERATIONS),
}
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "run": {"prompt": "hi"},
    "runNamed": {"model": CHAT, "input": {"prompt": "hi"}},
    "runBinding": {"inputs": {"prompt": "hi"}},
    "createChatCompletion": {"model": MODEL, "messages": HI, "logprobs": True, "top_logprobs": 1},
    "createCompletion": {"model": MODEL, "prompt": "hi", "logprobs": 1, "n": 2},
    "createResponse": {"model": MODEL, "input": "hi"},
    "countResponseTokens": {"model": MODEL, "input": "hi"},
    "createMessage": {"model": MODEL, "messages": HI, "max_tokens": 5},
    "countMessageTokens": {"model": MODEL, "messages": HI},
}
LINE = (
    '{"custom_id": "a", "method": "POST", "url": "/v1/completions", '
    f'"body": {{"model": "{MODEL}", "prompt": "hi"}}}}'
)
BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}
V1_PATH = f"{ACCOUNT_PATH}/ai/v1"
V1 = f"{ACCOUNT_PATH.format(account_id=ACCOUNT)}/ai/v1"


def test_it_is_served_to_everybody(edge: Deployment) -> None:
    reply = httpx.get(f"http://127.0.0.1:{edge.port}/openapi.json", trust_env=False)
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == openapi_document()
    assert reply.json()["openapi"] == "3.1.0"


def test_every_route_is_described_and_every_description_served(edge: Deployment) -> None:
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in routes(OPERATIONS)
        if not route.path.startswith(("/v1/", "/ai/v1/"))
        for method in (route.methods or set()) - {"HEAD"}
        if route.path.replace(":path}", "}") not in UNDESCRIBED
    }
    described = openapi_document()["paths"].items()
    assert served == {
        (path, method) for path, item in described for method in item if method != "parameters"
    }


def test_every_name_of_an_operation_is_routed(edge: Deployment) -> None:
    """What is described under the account is served under the two short prefixes as well."""
    served = {(route.path, *sorted(route.methods or ())) for route in routes(OPERATIONS)}
    long = {each for each in served if each[0].startswith(V1_PATH)}
    assert len(long) == 22
    for prefix in ("/ai/v1", "/v1"):
        assert {(prefix + path.removeprefix(V1_PATH), *rest) for path, *rest in long} <= served


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        (f"{V1}/chat/completions", OPENAI),
        (f"{V1}/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/v1/messages/batches/x", ANTHROPIC),
        ("/v1/messages2", OPENAI),
        ("/ai/v1/nothing", OPENAI),
        ("/v1", OPENAI),
        ("/v1x", NATIVE),
        (f"/v1/{ACCOUNT}/gateway/workers-ai/@cf/a/b", NATIVE),
        (f"/v1/{ACCOUNT}/gateway/compat/chat/completions", OPENAI),
        ("/ai-gateway/run", BINDING),
        ("/v1/files/x", OPENAI),
        ("/run", BINDING),
        ("/run/x", NATIVE),
        (f"/client/v4/accounts/{ACCOUNT}/ai/run/@cf/a/v1/messages", NATIVE),
        ("/metrics", NATIVE),
        ("/nothing", NATIVE),
    ],
)
def test_errors_are_told_in_the_dialect_of_their_path(path: str, dialect: Errors) -> None:
    assert errors_of(path) is dialect


def test_every_schema_is_sound_and_every_reference_leads_somewhere() -> None:
    described = openapi_document()

    def references(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(references, value))
        if not isinstance(value, dict):
            return set()
        found = set().union(*map(references, value.values()))
        return found | ({value["$ref"]} if isinstance(value.get("$ref"), str) else set())

    names = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert references(described) <= names
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def check(reply: httpx.Response, path: str, verb: str) -> None:
    """The answer is one of those that are described."""
    described = openapi_document()
    content = described["paths"][path][verb]["responses"][str(reply.status_code)]["content"]
    schema = content[reply.headers["content-type"]]["schema"]
    whole = {**schema, "components": described["components"]}
    is_json = reply.headers["content-type"] == "application/json"
    jsonschema.Draft202012Validator(whole).validate(reply.json() if is_json else reply.text)


def upload(edge: Deployment, path: str) -> httpx.Response:
    file = ("in.jsonl", LINE.encode())
    return edge.client.post(path, data={"purpose": "batch"}, files={"file": file})


def made(edge: Deployment, path: str) -> dict[str, str]:
    """Ids of something that an operation of this path can be asked about."""
    if "/files/" in path or "/batches/" in path:
        reply = upload(edge, f"{V1}/files")
        if "/batches/" in path:
            asked = {**BATCH, "input_file_id": reply.json()["id"]}
            reply = edge.client.post(f"{V1}/batches", json=asked)
    else:
        reply = edge.client.post(f"{V1}/responses", json=BODIES["createResponse"])
    return {"id": reply.json()["id"], "request_id": reply.headers["x-request-id"]}


def takes_json(operation: Operation) -> bool:
    return "application/json" in (operation.body or {})


def is_form(operation: Operation) -> bool:
    return "multipart/form-data" in (operation.body or {})


def call(edge: Deployment, operation: Operation, **values: str) -> httpx.Response:
    values = {"account_id": ACCOUNT, "model": MODEL, "id": "resp_none", "request_id": "r", **values}
    path = operation.described_path.format(**values)
    query = {"model": values["model"]} if path.endswith("/schema") else None
    headers = {"cf-consn-model-id": values["model"]}
    if "steer" in (operation.scopes or ()):  # no token of a tenant has it
        token, _ = edge.edge.tokens.create(account_id=ACCOUNT, scopes=("steer",), now=0)
        headers["authorization"] = f"Bearer {token}"
    if is_form(operation):
        return upload(edge, path)
    body = BODIES.get(operation.id, {}) if operation.method == "POST" else None
    return edge.client.request(operation.method, path, params=query, headers=headers, json=body)


DESCRIBED = [each for each in OPERATIONS if each.id]


@pytest.mark.parametrize("operation", DESCRIBED, ids=lambda operation: operation.id)
def test_answers_are_as_described(edge: Deployment, operation: Operation) -> None:
    reply = call(edge, operation, **made(edge, operation.path))
    if operation.id in BODIES or not takes_json(operation):
        assert reply.status_code == (426 if 101 in operation.answers else 200)
    check(reply, operation.described_path, operation.method.lower())
    check(
        call(edge, operation, model="@cf/none/no"),
        operation.described_path,
        operation.method.lower(),
    )
    if takes_json(operation):
        broken = edge.client.post(str(reply.url), content=b"{")
        assert broken.status_code == 400
        check(broken, operation.described_path, operation.method.lower())
    other = call(edge, operation, account_id="f" * 32)
    if "{account_id}" in operation.path:
        assert other.status_code == 404
    check(other, operation.described_path, operation.method.lower())
