"""The Workers AI dialect over real HTTP: shapes, framing, codes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.edge.support import (
    ACCOUNT,
    ALIAS,
    BOS,
    CHAT,
    CONTEXT,
    MODEL,
    UNSERVED,
    Deployment,
    answer,
    done,
    events,
)

from skerry.errors import Overloaded, QuotaExceeded, Unavailable

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
HI = [{"role": "user", "content": "hi"}]


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


def assert_error(reply: Any, status: int, code: int, *words: str) -> None:
    """Upstream's failure envelope, key order included."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["errors", "success", "result", "messages"]
    assert (body["success"], body["result"], body["messages"]) == (False, {}, [])
    assert [error["code"] for error in body["errors"]] == [code]
    message = body["errors"][0]["message"]
    assert message.startswith("AiError: ")
    assert message.endswith(f" ({reply.headers['cf-ai-req-id']})")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, 5006, ("'prompt' and 'messages'", "neither")),
        ({"max_tokens": 3}, 5006, ("neither",)),
        ({"prompt": "x", "messages": HI}, 5006, ("both",)),
        ({"prompt": ""}, 5006, ("prompt", "length >= 1")),
        ({"prompt": 5}, 5006, ("prompt",)),
        ({"messages": []}, 5006, ("messages", "length >= 1")),
        ({"messages": "hello"}, 5006, ("messages", "array")),
        ({"messages": [{"role": "user", "content": 5}]}, 5006, ("messages[0].content",)),
        ({"messages": [{"content": "x"}]}, 5006, ("messages[0]", "role")),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 5006, ("type",)),
        ({"messages": HI * 2001}, 5006, ("messages", "2000")),
        ({"prompt": "x", "temperature": 5.1}, 5006, ("temperature", "5.0")),
        ({"prompt": "x", "temperature": "hot"}, 5006, ("temperature",)),
        ({"prompt": "x", "top_p": 0}, 5006, ("top_p",)),
        ({"prompt": "x", "top_k": 0}, 5006, ("top_k",)),
        ({"prompt": "x", "max_tokens": 0}, 5006, ("max_tokens",)),
        ({"prompt": "x", "max_tokens": True}, 5006, ("max_tokens",)),
        ({"prompt": "x", "max_tokens": 1.5}, 5006, ("max_tokens",)),
        ({"prompt": "x", "max_tokens": 1 << 70}, 5006, ("max_tokens",)),
        ({"prompt": "x", "max_tokens": CONTEXT + 1}, 5006, ("max_tokens", "513", "512 tokens")),
        ({"prompt": "x", "seed": -1}, 5006, ("seed",)),
        ({"prompt": "x", "stop": [""]}, 5006, ("stop",)),
        ({"prompt": "x", "stop": ["x"] * 17}, 5006, ("stop",)),
        ({"prompt": "x", "logit_bias": {"1": 101}}, 5006, ("logit_bias",)),
        ({"prompt": "x", "logit_bias": {"258": 1}}, 5006, ("logit_bias", "258")),
        ({"prompt": "x", "logit_bias": {"-1": 1}}, 5006, ("logit_bias",)),
        ({"prompt": "x", "logit_bias": {"\u0661": 1}}, 5006, ("logit_bias",)),
        ({"prompt": "x", "tools": [{"title": "f"}]}, 5006, ("tools[0].name",)),
        ({"prompt": "x", "functions": [{}]}, 5006, ("functions[0].name",)),
        ({"prompt": "x", "response_format": {"type": "xml"}}, 5006, ("response_format",)),
    ],
)
def test_bad_input_names_the_field(
    edge: Deployment, body: dict[str, Any], code: int, words: tuple[str, ...]
) -> None:
    assert_error(edge.run(**body), 400, code, *words)
    assert edge.region.streams == []


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"prompt": ', 3003, "not valid JSON"),
        (b"", 3003, "empty"),
        (b"  ", 3003, "empty"),
        (b'{"prompt":"x"} x', 3003, "not valid JSON"),
        (b'{"prompt":"x","temperature":NaN}', 3003, "not valid JSON"),
        (b'{"prompt":"x","temperature":1e999}', 5006, "temperature"),
        (b'{"prompt":"\xff"}', 3003, "not UTF-8"),
        (b'{"prompt":"x","unknown":"\xff"}', 3003, "not UTF-8"),
        (b'{"prompt":"\\ud800"}', 3003, "not valid JSON"),
        (b'{"prompt":"x","deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 3003, "too deeply"),
        (b'["prompt"]', 5006, "object"),
    ],
)
def test_bad_json(edge: Deployment, body: bytes, code: int, words: str) -> None:
    assert_error(edge.client.post(edge.run_path, content=body), 400, code, words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": "x" * CONTEXT}, ("530 tokens", "512 tokens")),
        ({"prompt": "x", "max_tokens": 500}, ("19 tokens", "500", "At most 493")),
        ({"prompt": "x" * CONTEXT * 40}, ("20480 characters", "512 tokens")),
        ({"messages": HI * 1000}, ("9011 tokens",)),
    ],
)
def test_what_exceeds_the_context_says_by_how_much(
    edge: Deployment, body: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert_error(edge.run(**body), 413, 5021, *words)


def test_a_body_beyond_the_limit(edge: Deployment) -> None:
    size = edge.edge.limits.body_bytes + 1
    reply = edge.client.post(edge.run_path, content=b"x" * size)
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (413, 3006)


def test_models_and_adapters_that_are_not_here(edge: Deployment) -> None:
    base = f"/client/v4/accounts/{ACCOUNT}/ai/run"
    for model, words in (
        ("@cf/none/no", "No such model"),
        (UNSERVED, "not served here"),
        ("", "No"),
    ):
        assert_error(edge.client.post(f"{base}/{model}", json={"prompt": "x"}), 400, 5007, words)
    assert_error(edge.client.post(f"{base}/@cf%252Ftest%252Fbytes", json={}), 400, 5007)
    assert_error(edge.run(prompt="x", lora="mine"), 405, 5005, "LoRA")


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (Overloaded("Full.", retry_after=2.5), 429, 3040, {"retry-after": "3"}),
        (QuotaExceeded("Used up."), 429, 4006, {"x-should-retry": "false"}),
        (Unavailable("Gone."), 503, 7009, {}),
        (RuntimeError("secret detail"), 500, 8008, {}),
    ],
)
def test_errors_before_the_first_byte(
    edge: Deployment, error: Exception, status: int, code: int, headers: dict[str, str]
) -> None:
    def refuse(submit: object) -> list[Any]:
        raise error

    edge.region.script = refuse
    for stream in (False, True):
        reply = edge.run(prompt="x", stream=stream)
        assert_error(reply, status, code)
        assert "secret" not in reply.text
        assert headers.items() <= dict(reply.headers).items()


def test_errors_after_the_first_byte_are_events(edge: Deployment) -> None:
    edge.region.script = lambda submit: [*answer("Hel")[:3], Unavailable("The node is gone.")]
    reply = edge.run(prompt="x", stream=True)
    assert reply.status_code == 200
    assert "event: error\ndata: " in reply.text
    *chunks, error = events(reply.text)
    assert "".join(chunk["response"] for chunk in chunks) == "Hel"
    assert error["errors"][0]["code"] == 7009
    assert "[DONE]" not in reply.text
    assert_error(edge.run(prompt="x"), 503, 7009, "The node is gone.")


def test_a_node_that_cancels_is_an_error_not_an_answer(edge: Deployment) -> None:
    edge.region.script = lambda submit: [*answer("Hel")[:3], done("cancelled", 3)]
    assert_error(edge.run(prompt="x"), 503, 7009)


def test_routes_and_methods_that_do_not_exist(edge: Deployment) -> None:
    reply = edge.client.get(f"/client/v4/accounts/{ACCOUNT}/ai/nothing")
    assert reply.status_code == 404
    body = reply.json()
    assert list(body) == ["result", "success", "errors", "messages"]
    assert body["result"] is None
    assert [error["code"] for error in body["errors"]] == [7003, 7000]
    for method in ("GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
        reply = edge.client.request(method, edge.run_path)
        assert reply.status_code == 405
        assert [error["code"] for error in reply.json()["errors"]] == [7001]
        assert reply.headers["allow"] == "POST"


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
