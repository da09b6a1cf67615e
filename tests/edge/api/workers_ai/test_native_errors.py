"""Errors of the Workers AI dialect: which field, which code, before and after the first byte."""

from __future__ import annotations

from typing import Any

import pytest
from tests.edge.api.workers_ai.error_bodies import HI, assert_error
from tests.edge.byte_text import CONTEXT
from tests.edge.scripted_region import answer, done
from tests.edge.support import ACCOUNT, UNSERVED, Deployment, events

from skerry.errors import Overloaded, QuotaExceeded, Unavailable


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
