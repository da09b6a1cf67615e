"""Models whose answers are chat completions, also on `/ai/run`; schemas; the Workers binding."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from tests.edge.byte_text import CONTEXT
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import ACCOUNT, CHAT, Deployment, events

from skerry.errors import Overloaded, Unavailable

ACCOUNT_PATH = f"/client/v4/accounts/{ACCOUNT}"
HI = [{"role": "user", "content": "hi"}]


def run_chat(edge: Deployment, **body: Any) -> httpx.Response:
    return edge.client.post(f"{ACCOUNT_PATH}/ai/run/{CHAT}", json=body)


@pytest.mark.parametrize("body", [{"messages": HI}, {"prompt": "hi"}])
def test_a_chat_model_answers_with_a_completion(edge: Deployment, body: dict[str, Any]) -> None:
    reply = run_chat(edge, **body, max_completion_tokens=9).json()
    assert reply["success"] is True
    result = reply["result"]
    assert (result["object"], result["model"]) == ("chat.completion", CHAT)
    assert result["choices"][0]["message"]["content"] == "Hello"
    assert result["usage"]["total_tokens"] == 26
    (submit,) = edge.region.submits
    assert bytes(submit.prompt_ids) == b"<user>hi\n<assistant>"
    assert submit.sampling.max_tokens == 9


def test_a_stream_of_a_chat_model_has_both_usages(edge: Deployment) -> None:
    *chunks, usage, tail, end = events(run_chat(edge, messages=HI, stream=True).text)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert (text, end) == ("Hello", "[DONE]")
    assert usage["choices"] == []
    assert tail == {"response": "", "usage": usage["usage"]}
    assert "response" not in events(edge.chat(model=CHAT, stream=True).text)[-2]


def test_its_errors_are_native(edge: Deployment) -> None:
    for body in ({}, {"prompt": "x", "messages": HI}, {"messages": []}, {"messages": "x"}):
        reply = run_chat(edge, **body)
        assert (reply.status_code, reply.json()["errors"][0]["code"]) == (400, 5006)
        assert reply.json()["result"] == {}
    edge.region.script = lambda submit: [[65], Unavailable("Gone.")]
    text = run_chat(edge, messages=HI, stream=True).text
    assert "event: error" in text
    assert events(text)[-1]["errors"][0]["code"] == 7009


def test_the_catalog_may_raise_the_default_length(edge: Deployment) -> None:
    run_chat(edge, prompt="hi")
    edge.run(prompt="hi")
    assert [submit.sampling.max_tokens for submit in edge.region.submits] == [300, 256]


def test_schemas(edge: Deployment) -> None:
    def schema(model: str) -> Any:
        path = f"{ACCOUNT_PATH}/ai/models/schema"
        return edge.client.get(path, params={"model": model}).json()["result"]

    native = schema(MODEL)
    properties = native["input"]["properties"]
    assert properties["max_tokens"]["default"] == 256
    assert properties["max_tokens"]["anyOf"][0]["maximum"] == CONTEXT
    assert [each["required"] for each in native["input"]["oneOf"]] == [["prompt"], ["messages"]]
    assert native["input"]["$defs"]["Message"]["required"] == ["role"]
    assert set(native["output"]["properties"]) == {
        "reasoning_content",
        "response",
        "tool_calls",
        "usage",
    }
    chat = schema(CHAT)
    assert chat["input"]["properties"]["max_tokens"]["default"] == 300
    assert "choices" in chat["output"]["properties"]
    for query in ({}, {"model": ""}, {"model": "@cf/none/no"}):
        assert edge.client.get(f"{ACCOUNT_PATH}/ai/models/schema", params=query).status_code == 400


def test_authors_and_tasks(edge: Deployment) -> None:
    authors = edge.client.get(f"{ACCOUNT_PATH}/ai/authors/search").json()["result"]
    assert authors == [{"name": "meta"}, {"name": "test"}]
    tasks = edge.client.get(f"{ACCOUNT_PATH}/ai/tasks/search").json()["result"]
    assert [task["name"] for task in tasks] == ["Text Generation"]


def bound(edge: Deployment, inputs: Any, model: str = MODEL) -> httpx.Response:
    """As a Worker's `env.AI.run` calls."""
    headers = {"cf-consn-sdk-version": "2.0.0", "cf-consn-model-id": model}
    body = {"inputs": inputs, "options": {"tags": ["a"]}}
    return edge.client.post("/run?version=3", headers=headers, json=body)


def test_the_binding_gets_bare_results(edge: Deployment) -> None:
    reply = bound(edge, {"prompt": "hi"})
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cf-ai-req-id"]
    assert reply.json()["response"] == "Hello"
    assert bound(edge, {"prompt": "hi"}, f"workers-ai:{CHAT}").json()["object"] == "chat.completion"
    stream = bound(edge, {"prompt": "hi", "stream": True})
    assert stream.headers["content-type"] == "text/event-stream"
    assert events(stream.text)[-1] == "[DONE]"
    assert edge.client.get("/ai-api/models/search").json()["result"][0]["name"] == MODEL


def test_the_binding_gets_errors_in_its_form(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("never")
    for reply, status, code in (
        (bound(edge, {}), 400, 5006),
        (bound(edge, {"prompt": "hi"}, "@cf/none/no"), 400, 5007),
        (bound(edge, {"prompt": "hi"}, ""), 400, 5006),
        (edge.client.post("/run", headers={"authorization": "Bearer no"}), 401, 10000),
    ):
        assert reply.status_code == status
        error = reply.json()
        assert error["internalCode"] == code
        assert error["name"] == "AiError"
        assert error["description"].startswith(error["message"])

    def refuse(submit: object) -> list[Any]:
        raise Overloaded("Full.", retry_after=2.0)

    edge.region.script = refuse
    reply = bound(edge, {"prompt": "hi"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert msgspec.json.decode(reply.content)["internalCode"] == 3040
