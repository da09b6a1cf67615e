"""Whatever JSON a client sends, the answer is a documented one and the edge goes on."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import Deployment
from tests.properties import examples

from skerry.wire import TextGenerationInput
from skerry.wire.openai import ChatCompletionRequest, CompletionRequest
from skerry_edge.api.anthropic.messages_wire import MessagesRequest
from skerry_edge.api.responses.responses_wire import ResponsesRequest

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, 1, -1, 0.5, 2.0, 1e-8, 1e300, "", "x", "stop", MODEL, "\0", "€"]),
    st.text(max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
turns = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), values, max_size=4),
    max_size=3,
)
good = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def bodies(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """A request of which some fields are replaced by anything."""
    fields = st.dictionaries(st.sampled_from(kind.__struct_fields__), values | turns, max_size=4)
    return fields.map(lambda replaced: {**good, **replaced})


hostile = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
fewer = settings(hostile, max_examples=examples(50))
DOCUMENTED = {200, 400, 405, 413}


@hostile
@given(body=bodies(TextGenerationInput))
def test_native_bodies(shared_deployment: Deployment, body: dict[str, Any]) -> None:
    shared_deployment.region.script = lambda submit: answer("Hi")
    reply = shared_deployment.client.post(
        shared_deployment.run_path, content=msgspec.json.encode(body)
    )
    assert reply.status_code in DOCUMENTED, reply.text
    if reply.status_code != 200:
        assert reply.json()["errors"][0]["message"]


@hostile
@given(body=bodies(ChatCompletionRequest))
def test_chat_bodies(shared_deployment: Deployment, body: dict[str, Any]) -> None:
    shared_deployment.region.script = lambda submit: answer("Hi")
    reply = shared_deployment.client.post(
        shared_deployment.chat_path, content=msgspec.json.encode({"model": MODEL, **body})
    )
    assert reply.status_code in DOCUMENTED, reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]


@fewer
@given(body=bodies(CompletionRequest))
def test_completion_bodies(shared_deployment: Deployment, body: dict[str, Any]) -> None:
    shared_deployment.region.script = lambda submit: answer("Hi")
    reply = shared_deployment.client.post(
        shared_deployment.complete_path,
        content=msgspec.json.encode({"model": MODEL, "prompt": "x", **body}),
    )
    assert reply.status_code in DOCUMENTED, reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]


@fewer
@given(body=bodies(MessagesRequest))
def test_message_bodies(shared_deployment: Deployment, body: dict[str, Any]) -> None:
    path = shared_deployment.chat_path.replace("chat/completions", "messages")
    shared_deployment.region.script = lambda submit: answer("Hi")
    reply = shared_deployment.client.post(
        path, content=msgspec.json.encode({"model": MODEL, **body})
    )
    assert reply.status_code in DOCUMENTED, reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]


@fewer
@given(body=bodies(ResponsesRequest), items=turns)
def test_response_bodies(
    shared_deployment: Deployment, body: dict[str, Any], items: list[Any]
) -> None:
    path = shared_deployment.chat_path.replace("chat/completions", "responses")
    shared_deployment.region.script = lambda submit: answer("Hi")
    whole = {"model": MODEL, "input": items, "store": False, **body}
    reply = shared_deployment.client.post(path, content=msgspec.json.encode(whole))
    assert reply.status_code in DOCUMENTED, reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]


@hostile
@given(raw=st.binary(max_size=200))
def test_bytes(shared_deployment: Deployment, raw: bytes) -> None:
    for path in (shared_deployment.run_path, shared_deployment.chat_path):
        assert shared_deployment.client.post(path, content=raw).status_code == 400
