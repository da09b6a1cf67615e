"""`/ai/models/schema` says what `/ai/run` takes: what it calls valid is served, else refused."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.edge.byte_text import CONTEXT
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import ACCOUNT, CHAT, Deployment
from tests.properties import examples

BASE = f"/client/v4/accounts/{ACCOUNT}/ai"
TURN = {"role": "user", "content": "hi"}

# Values around every bound; tools and formats have schemas of their own.
FIELDS: dict[str, list[Any]] = {
    "prompt": [None, "hi", "", 3, ["hi"]],
    "messages": [None, [TURN], [], [{}], [{"role": ""}], "hi", [TURN | {"content": None}],
                 [TURN | {"content": [{"type": "text", "text": "hi"}]}], [TURN | {"extra": 1}]],
    "max_tokens": [None, 1, 0, CONTEXT, CONTEXT + 1, "4", 1.5, -1],
    "temperature": [None, 0, 5, 5.1, -0.1, "hot", True],
    "top_p": [None, 1, 0, 0.5, 1.01],
    "top_k": [None, 1, 1000, 1001, 0.5],
    "seed": [None, 0, -(1 << 64), 1 << 62, 1 << 63],
    "stop": [None, "a", ["a"], ["a"] * 17, "", [3], "x" * 257],
    "repetition_penalty": [None, 1, 0, 2, 2.1],
    "presence_penalty": [None, -2, 2, 3],
    "logit_bias": [None, {}, {"3": 1}, {"3": 101}, [1]],
    "raw": [None, True, "yes"],
    "unknown": [None, 1, {"a": []}],
}  # fmt: skip

bodies = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in FIELDS.items()}
)


class Schemas:
    """The input schemas that the server returns."""

    def __init__(self, deployment: Deployment) -> None:
        self._validators = {model: self._validator(deployment, model) for model in (MODEL, CHAT)}

    def _validator(self, deployment: Deployment, model: str) -> jsonschema.Draft202012Validator:
        reply = deployment.client.get(f"{BASE}/models/schema", params={"model": model})
        schema = reply.json()["result"]["input"]
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema)

    def take(self, model: str, body: dict[str, Any]) -> bool:
        return self._validators[model].is_valid(body)


@pytest.fixture(scope="module")
def schemas(shared_deployment: Deployment) -> Schemas:
    return Schemas(shared_deployment)


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(body=bodies, model=st.sampled_from([MODEL, CHAT]))
@example(body={"prompt": "hi", "max_tokens": CONTEXT}, model=MODEL)
@example(body={"messages": [TURN], "max_tokens": CONTEXT}, model=CHAT)
def test_the_schema_and_the_server_agree(
    shared_deployment: Deployment, schemas: Schemas, body: dict[str, Any], model: str
) -> None:
    shared_deployment.region.script = lambda submit: answer("Hi")
    reply = shared_deployment.client.post(f"{BASE}/run/{model}", content=msgspec.json.encode(body))
    valid = 413 if body.get("max_tokens") == CONTEXT else 200  # no schema knows the prompt's length
    expected = valid if schemas.take(model, body) else 400
    assert reply.status_code == expected, (body, reply.text)
