"""The OpenAI dialect over real HTTP: strict shapes, the stream's grammar, both error forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.edge.byte_text import EOS
from tests.edge.scripted_region import MODEL, answer, done
from tests.edge.support import ACCOUNT, ALIAS, CHAT, Deployment, deployed, events

from skerry.errors import Overloaded, Unavailable
from skerry_edge.limits import Limits

PREFIXES = (f"/client/v4/accounts/{ACCOUNT}/ai/v1", "/ai/v1", "/v1")
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 6,
    "total_tokens": 26,
    "prompt_tokens_details": {"cached_tokens": 0},
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_plain_answer(edge: Deployment, prefix: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    reply = edge.client.post(
        f"{prefix}/chat/completions", json={"model": ALIAS, "messages": messages}
    )
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body.pop("id") == f"chatcmpl-{reply.headers['x-request-id']}"
    assert body.pop("created") > 1_600_000_000
    assert body == {
        "object": "chat.completion",
        "model": ALIAS,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": USAGE,
    }
    assert bytes(edge.region.submits[0].prompt_ids) == b"<user>hi\n<assistant>"


def test_what_the_region_is_asked(edge: Deployment) -> None:
    edge.chat(
        max_completion_tokens=9, max_tokens=5, temperature=0, seed=-1, top_k=-1, min_p=0.1,
        typical_p=0.7,
        frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={"65": -100, "66": 1.5},
        min_tokens=2, ignore_eos=True,
    )  # fmt: skip
    edge.chat()
    first, second = (submit.sampling for submit in edge.region.submits)
    assert (first.max_tokens, first.min_tokens, first.temperature) == (9, 2, 0.0)
    assert (first.seed, first.top_k, first.min_p) == ((1 << 64) - 1, 0, 0.1)
    assert (first.typical_p, second.typical_p) == (0.7, 1.0)
    assert (first.frequency_penalty, first.presence_penalty) == (0.5, -0.5)
    assert first.logit_bias == ((65, -100.0), (66, 1.5))
    assert (first.stop_token_ids, first.logprobs) == ((), None)
    assert (second.max_tokens, second.temperature, second.stop_token_ids) == (256, 1.0, (EOS,))


def test_foreign_and_null_fields_are_tolerated(edge: Deployment) -> None:
    reply = edge.chat(
        stop=None, tools=None, tool_choice="auto", functions=[], n=None, logprobs=None,
        response_format={"type": "text"}, metadata={}, store=False, user="u", x=[{"y": 1}],
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )  # fmt: skip
    assert reply.status_code == 200


def chunks_of(reply: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ended well: one id, one object, `[DONE]` last."""
    assert reply.headers["content-type"] == "text/event-stream"
    *chunks, end = events(reply.text)
    assert end == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    return chunks


def test_a_stream(edge: Deployment) -> None:
    chunks = chunks_of(edge.chat(stream=True))
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert [choice["delta"]["content"] for choice in choices[1:-1]] == list("Hello")
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]


def test_usage_is_streamed_only_if_asked(edge: Deployment) -> None:
    *chunks, last = chunks_of(edge.chat(stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert chunks_of(edge.chat(stream=True, stream_options={"include_usage": False}))[-1]["choices"]


def test_length_is_a_reason(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("Hel", reason="length")
    assert edge.chat().json()["choices"][0]["finish_reason"] == "length"
    assert chunks_of(edge.chat(stream=True))[-1]["choices"][0]["finish_reason"] == "length"


def test_choices_share_the_seed_and_are_told_apart(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("ab"[submit.sampling.choice] * 3)
    body = edge.chat(n=2, seed=5).json()
    assert [c["message"]["content"] for c in body["choices"]] == ["aaa", "bbb"]
    assert [c["index"] for c in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == 20
    assert body["usage"]["completion_tokens"] == 8
    assert {submit.sampling.seed for submit in edge.region.submits} == {5}
    chunks = chunks_of(edge.chat(n=2, stream=True))
    texts: dict[int, str] = {0: "", 1: ""}
    for choice in (chunk["choices"][0] for chunk in chunks):
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "aaa", 1: "bbb"}
    assert sum(chunk["choices"][0]["finish_reason"] == "stop" for chunk in chunks) == 2


def test_as_many_choices_as_there_may_be(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits()) as edge:
        for stream in (False, True):
            edge.region.streams.clear()
            reply = edge.chat(n=128, stream=stream)
            indices = [submit.sampling.choice for submit in edge.region.submits]
            assert indices == list(range(128))
            if stream:
                chunks = events(reply.text)[:-1]
                told = {choice["index"] for chunk in chunks for choice in chunk["choices"]}
                assert told == set(range(128))
            else:
                texts = [each["message"]["content"] for each in reply.json()["choices"]]
                assert texts == ["Hello"] * 128


def test_one_failed_choice_fails_the_answer_and_stops_the_others(edge: Deployment) -> None:
    from tests.edge.scripted_region import Hold

    edge.region.script = lambda submit: (
        [Unavailable("Gone.")] if submit.sampling.choice == 1 else [[65], Hold()]
    )
    assert edge.chat(n=2).status_code == 503
    assert all(stream.aborted.wait(60) for stream in edge.region.streams)


def test_logprobs(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("hé")
    content = edge.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]},
            {"token": "i", "logprob": -1.5, "bytes": [105]},
        ],
    }
    assert bytes(byte for each in content for byte in each["bytes"]).decode() == "hé"
    streamed = chunks_of(edge.chat(logprobs=True, stream=True))
    entries = [
        e for c in streamed for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["bytes"] for entry in entries] == [[104], [0xC3], [0xA9]]
    assert all(entry["top_logprobs"] == [] for entry in entries)


def test_logprobs_end_where_the_text_does(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("one two")
    choice = edge.chat(stop=" t", logprobs=True).json()["choices"][0]
    assert choice["message"]["content"] == "one"
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "one"


def assert_error(reply: Any, status: int, code: str, number: int, param: str | None) -> None:
    """OpenAI's form and the envelope's `errors` in one body."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    assert body["error"]["type"]
    assert body["errors"] == [{"message": body["error"]["message"], "code": number}]
    assert body["success"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 129}, "n"),
        ({"n": 9}, "n"),  # more than this edge has places
        ({"n": 0}, "n"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 4}, "top_logprobs"),  # without logprobs
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"max_completion_tokens": 513}, "max_completion_tokens"),
        ({"min_tokens": 300}, "min_tokens"),
    ],
)
def test_bad_input_names_the_field(edge: Deployment, fields: dict[str, Any], param: str) -> None:
    assert_error(edge.chat(**fields), 400, "invalid_input", 5006, param)


def test_other_errors(edge: Deployment) -> None:
    assert_error(edge.chat(model="@cf/none/no"), 400, "model_not_found", 5007, "model")
    tools = [{"type": "function"}]
    assert_error(edge.chat(tools=tools), 400, "invalid_input", 5006, "tools[0].name")
    assert_error(edge.chat(max_tokens=500), 400, "context_length_exceeded", 5021, "max_tokens")
    assert_error(edge.client.get("/v1/nothing"), 404, "not_found", 7003, None)
    assert_error(edge.client.get("/v1/chat/completions"), 405, "method_not_allowed", 7001, None)
    reply = edge.client.get("/ai/v1/models", headers={"authorization": "Bearer wrong"})
    assert_error(reply, 401, "authentication_error", 10000, None)

    def refuse(submit: object) -> list[Any]:
        raise Overloaded("Full.", retry_after=1)

    edge.region.script = refuse
    assert_error(edge.chat(stream=True), 429, "overloaded", 3040, None)


def test_errors_after_the_first_byte_are_events(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], RuntimeError("secret detail")]
    reply = edge.chat(stream=True)
    error = events(reply.text)[-1]
    assert error["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    assert "[DONE]" not in reply.text


@pytest.mark.parametrize("prefix", PREFIXES)
def test_models(edge: Deployment, prefix: str) -> None:
    listed = edge.client.get(f"{prefix}/models").json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == [MODEL, ALIAS, CHAT]
    assert listed["data"][0]["owned_by"] == "test"
    for name in (MODEL, ALIAS, MODEL.replace("/", "%2F")):
        card = edge.client.get(f"{prefix}/models/{name}").json()
        assert (card["id"], card["object"]) == (name.replace("%2F", "/"), "model")
    missing = edge.client.get(f"{prefix}/models/@cf/none/no")
    assert_error(missing, 400, "model_not_found", 5007, "model")


def test_the_cached_share_is_reported(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], done("length", 1, cached_tokens=19)]
    assert edge.chat().json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 19}
