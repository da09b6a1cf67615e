"""Text completions over real HTTP: every form of prompt, echo, log-probabilities, streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.edge.byte_text import BOS, CONTEXT, EOS
from tests.edge.scripted_region import MODEL, Step, answer, done
from tests.edge.support import Deployment, events

from skerry_regions.wire.protocol import Submit, Tokens

FIRST, SECOND = [*b"one"], [*b"two"]


def scored(submit: Submit) -> Sequence[Step]:
    """As a node answers `prompt_logprobs`: all prompt tokens but the first, in two chunks."""
    width = submit.prompt_logprobs or 0
    told = [
        (-float(i), [(each + rank, -float(i) - rank) for rank in range(width)])
        for i, each in enumerate(submit.prompt_ids)
    ]
    chunks = [told[1:3], told[3:]]
    steps: list[Step] = [
        Tokens(stream=1, index=0, token_ids=[], prompt_logprobs=chunk) for chunk in chunks if chunk
    ]
    return [*steps, *answer("!", reason="length")]


def test_a_plain_answer(edge: Deployment) -> None:
    reply = edge.complete(prompt="Hi")
    body = reply.json()
    assert body.pop("id") == f"cmpl-{reply.headers['x-request-id']}"
    assert body.pop("created") > 1_600_000_000
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 6,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    (submit,) = edge.region.submits
    assert submit.prompt_ids == [BOS, *b"Hi"]
    assert (submit.sampling.max_tokens, submit.sampling.temperature) == (16, 1.0)
    assert (submit.sampling.logprobs, submit.prompt_logprobs) == (None, None)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("one", [[BOS, *FIRST]]),
        (["one", "two"], [[BOS, *FIRST], [BOS, *SECOND]]),
        (FIRST, [FIRST]),
        ([FIRST, SECOND], [FIRST, SECOND]),
        ([FIRST], [FIRST]),
    ],
)
def test_forms_of_the_prompt(edge: Deployment, prompt: Any, ids: list[list[int]]) -> None:
    edge.region.script = lambda submit: answer(bytes(submit.prompt_ids[-3:]))
    body = edge.complete(prompt=prompt).json()
    assert [submit.prompt_ids for submit in edge.region.submits] == ids
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (i, bytes(each[-3:]).decode()) for i, each in enumerate(ids)
    ]
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_choices_of_each_prompt_stand_together(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(
        bytes([submit.prompt_ids[-1], 48 + submit.sampling.choice])
    )
    reply = edge.complete(prompt=["a", "b"], n=2, best_of=2, seed=3)
    assert [c["text"] for c in reply.json()["choices"]] == ["a0", "a1", "b0", "b1"]
    submits = edge.region.submits
    assert len({(s.request_id, s.sampling.choice) for s in submits}) == 4
    assert {s.sampling.seed for s in submits} == {3}
    assert reply.json()["usage"]["prompt_tokens"] == 4
    assert reply.json()["usage"]["completion_tokens"] == 12


def test_cached_tokens_are_of_every_prompt(edge: Deployment) -> None:
    edge.region.script = lambda submit: [
        [65],
        done("length", 1, cached_tokens=len(submit.prompt_ids) - submit.sampling.choice),
    ]
    usage = edge.complete(prompt=[FIRST, SECOND], n=2).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6}


def test_echo(edge: Deployment) -> None:
    choice = edge.complete(prompt="Say ", echo=True).json()["choices"][0]
    assert choice["text"] == "Say Hello"
    choice = edge.complete(prompt=[*b"Say "], echo=True, stop="l").json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Say He", "stop")
    assert edge.region.submits[0].prompt_logprobs is None


def test_a_prompt_is_scored(edge: Deployment) -> None:
    """What lm-eval sends: `tokens` has prompt + 1 entries, whatever the one token is."""
    edge.region.script = scored
    body = edge.complete(prompt=[*b"abcd"], echo=True, logprobs=1, max_tokens=1, temperature=0)
    choice = body.json()["choices"][0]
    assert choice["text"] == "abcd!"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c", "d", "!"],
        "token_logprobs": [None, -1.0, -2.0, -3.0, -0.5],
        "top_logprobs": [None, {"b": -1.0}, {"c": -2.0}, {"d": -3.0}, {"!": -0.5}],
        "text_offset": [0, 1, 2, 3, 4],
    }
    assert edge.region.submits[0].prompt_logprobs == 1


def test_a_stop_token_is_told_beside_the_prompt(edge: Deployment) -> None:
    edge.region.script = lambda submit: [
        Tokens(stream=1, index=0, token_ids=[], prompt_logprobs=[(-1.0, [])]),
        [EOS],
        done("stop", 1),
    ]
    choice = edge.complete(prompt=[65, 66], echo=True, logprobs=0, max_tokens=1).json()["choices"][
        0
    ]
    assert choice["text"] == "AB"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -0.5]


def test_only_the_prompt_is_scored(edge: Deployment) -> None:
    edge.region.script = scored
    body = edge.complete(prompt="abé", echo=True, logprobs=0, max_tokens=0).json()
    (choice,) = body["choices"]
    assert choice["text"] == "abé"
    assert choice["logprobs"]["tokens"] == ["", "a", "b", "bytes:\\xc3", "bytes:\\xa9"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -3.0, -4.0]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 2]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 0)
    assert edge.region.submits[0].sampling.max_tokens == 1


def test_logprobs_without_echo(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("hé", reason="length")
    choice = edge.complete(prompt="abc", logprobs=2).json()["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [
            {"h": -0.5, "i": -1.5},
            {"bytes:\\xc3": -0.5, "bytes:\\xc4": -1.5},
            {"bytes:\\xa9": -0.5, "bytes:\\xaa": -1.5},
        ],
        "text_offset": [0, 1, 1],
    }
    assert edge.region.submits[0].prompt_logprobs is None


def test_a_stream_says_what_a_plain_answer_says(edge: Deployment) -> None:
    edge.region.script = scored
    asked: dict[str, Any] = {"prompt": ["abcd", "ef"], "echo": True, "logprobs": 1}
    plain = edge.complete(**asked).json()
    reply = edge.complete(**asked, stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"] == "text/event-stream"
    *chunks, last, end = events(reply.text)
    assert (end, last["choices"], last["usage"]) == ("[DONE]", [], plain["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    for choice in plain["choices"]:
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["length"]
        for name, values in choice["logprobs"].items():
            assert [each for c in own for each in c["logprobs"][name]] == values
    assert "usage" not in events(edge.complete(stream=True).text)[0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": "x" * (CONTEXT + 1)}, None),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": [[65] * 400] * 70, "echo": True, "logprobs": 20}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_refusals(edge: Deployment, fields: dict[str, Any], param: str | None) -> None:
    reply = edge.complete(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert edge.region.streams == []


def test_adapters_are_refused(edge: Deployment) -> None:
    reply = edge.complete(lora="mine")
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (405, 5005)
