"""The Workers AI dialect over real HTTP: shapes, framing, codes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.edge.api.workers_ai.error_bodies import HI, assert_error
from tests.edge.byte_text import BOS, CONTEXT
from tests.edge.scripted_region import MODEL, answer, done
from tests.edge.support import ACCOUNT, ALIAS, CHAT, Deployment, events

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def test_a_plain_answer(edge: Deployment) -> None:
    reply = edge.run(messages=HI)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert re.fullmatch(UUID, reply.headers["cf-ai-req-id"])
    assert reply.headers["x-request-id"] == reply.headers["cf-ai-req-id"]
    assert reply.text == (
        '{"result":{"response":"Hello","tool_calls":[],"usage":{"prompt_tokens":20,'
        '"completion_tokens":6,"total_tokens":26,"prompt_tokens_details":{"cached_tokens":0}}},'
        '"success":true,"errors":[],"messages":[]}'
    )


def test_what_the_region_is_asked(edge: Deployment) -> None:
    style = {"temperature": 0.25, "top_p": 0.5, "top_k": 3, "typical_p": 0.4}
    edge.run(messages=HI, max_tokens=7, seed=9, **style)
    submit = edge.region.submits[0]
    assert bytes(submit.prompt_ids) == b"<user>hi\n<assistant>"
    sampling = submit.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.25, 0.5)
    assert (sampling.top_k, sampling.typical_p, sampling.seed) == (3, 0.4, 9)
    assert sampling.stop_token_ids == (257,)
    assert submit.tenant == ACCOUNT
    assert (
        submit.cache_key
        == edge.edge.cache_keys[ACCOUNT, None]
        != edge.edge.cache_keys["f" * 32, None]
    )
    assert submit.seconds_left is not None
    assert 0 < submit.seconds_left <= edge.edge.limits.request_seconds


def test_defaults_are_upstreams(edge: Deployment) -> None:
    edge.run(prompt="hi", seed=None, stop=None, tools=None, functions=[], response_format=None)
    edge.run(prompt="hi", response_format={"type": "text"}, unknown_field={"x": [1]})
    first, second = edge.region.submits
    assert bytes(first.prompt_ids) == b"<user>hi\n<assistant>"
    assert (first.sampling.max_tokens, first.sampling.temperature) == (256, 0.6)
    assert (first.sampling.top_p, first.sampling.top_k, first.sampling.logprobs) == (1.0, 0, None)
    assert first.sampling.seed != second.sampling.seed


def test_raw_prompts_skip_the_template(edge: Deployment) -> None:
    edge.run(prompt="hi", raw=True)
    edge.run(
        messages=[*HI, {"role": "user", "content": [{"type": "text", "text": "you"}]}], raw=True
    )
    assert edge.region.submits[0].prompt_ids == [BOS, *b"hi"]
    assert edge.region.submits[1].prompt_ids == [BOS, *b"hi\nyou"]


def test_the_default_output_fits_the_context(edge: Deployment) -> None:
    edge.run(prompt="x" * (CONTEXT - 101), raw=True)
    assert edge.region.submits[0].sampling.max_tokens == 100


@pytest.mark.parametrize("model", [MODEL, MODEL.replace("/", "%2F"), ALIAS])
def test_models_are_found_by_raw_and_encoded_ids_and_aliases(edge: Deployment, model: str) -> None:
    reply = edge.client.post(f"/client/v4/accounts/{ACCOUNT}/ai/run/{model}", json={"prompt": "x"})
    assert reply.json()["result"]["response"] == "Hello"
    assert edge.region.submits[0].model == MODEL


def test_the_model_may_be_in_the_body(edge: Deployment) -> None:
    path = f"/client/v4/accounts/{ACCOUNT}/ai/run"
    reply = edge.client.post(path, json={"model": MODEL, "input": {"prompt": "x"}})
    assert reply.json()["result"]["response"] == "Hello"
    assert_error(edge.client.post(path, json={"input": {}}), 400, 5006, "model")


def test_a_stream(edge: Deployment) -> None:
    edge.region.script = lambda submit: [
        *answer("Héllo")[:-1],
        done("stop", 7, cached_tokens=4),
    ]
    reply = edge.run(messages=HI, stream=True)
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["cache-control"] == "no-cache"
    *chunks, usage, end = events(reply.text)
    assert end == "[DONE]"
    assert [chunk["response"] for chunk in chunks] == ["H", "é", "l", "l", "o"]
    assert all(isinstance(chunk["p"], str) for chunk in chunks)
    assert not any("tool_calls" in chunk for chunk in chunks)  # even empty it hides text from some
    assert usage == {
        "response": "",
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 7,
            "total_tokens": 27,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


def test_an_empty_answer(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("")
    assert edge.run(prompt="x").json()["result"]["response"] == ""
    assert [e if e == "[DONE]" else e["response"] for e in events(edge.run(prompt="x", stream=True).text)] == ["", "[DONE]"]  # fmt: skip  # noqa: E501


def test_stop_strings_end_the_answer(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("one two three four")
    result = edge.run(prompt="x", stop=["three", "zzz"]).json()["result"]
    assert result["response"] == "one two "
    assert result["usage"]["completion_tokens"] == len("one two three")
    assert edge.region.streams[0].aborted.is_set()
    streamed = events(edge.run(prompt="x", stop="three", stream=True).text)
    assert "".join(event["response"] for event in streamed[:-1]) == "one two "
    assert streamed[-2]["usage"]["completion_tokens"] == len("one two three")


def test_tokens_verify(edge: Deployment) -> None:
    reply = edge.client.get("/client/v4/user/tokens/verify")
    assert reply.json()["result"]["status"] == "active"
    assert reply.json()["messages"][0]["message"] == "This API Token is valid and active"


def test_models_search_pages_until_empty(edge: Deployment) -> None:
    path = f"/client/v4/accounts/{ACCOUNT}/ai/models/search"

    def search(**query: Any) -> dict[str, Any]:
        return edge.client.get(path, params=query).json()

    everything = search()
    assert [item["name"] for item in everything["result"]] == [MODEL, ALIAS, CHAT]
    assert everything["result_info"] == {"count": 3, "page": 1, "per_page": 50, "total_count": 3}
    item = everything["result"][0]
    assert item["task"]["name"] == "Text Generation"
    properties = {each["property_id"]: each["value"] for each in item["properties"]}
    assert properties["context_window"] == "512"
    assert properties["price"][0] == {"unit": "per M input tokens", "price": 0.5, "currency": "USD"}
    assert search(page=2)["result"] == []
    assert [item["name"] for item in search(per_page=1, page=2)["result"]] == [ALIAS]
    assert [item["name"] for item in search(search="BYTES")["result"]] == [MODEL]
    assert [item["name"] for item in search(task="Text Generation", author="meta")["result"]] == [
        ALIAS
    ]
    assert len(search(task="text-generation")["result"]) == 3
    assert search(task="Text Embeddings")["result"] == []
    for bad in ("0", "-1", "x", "99999999999999999999"):
        assert_error(edge.client.get(path, params={"page": bad}), 400, 5006, "page")
