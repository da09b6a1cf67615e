"""OpenAI's own client against the real engine and tokenizer: what is beside the plain answer.

The toy model says anything at all, so that only the grammars can make it call what may be called.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionToolUnionParam
from openai.types.shared_params import FunctionDefinition
from tests.e2e.command import MODEL, new_home

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

TOOLS: list[ChatCompletionToolUnionParam] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
    for name in ("add", "subtract", "multiply")
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[OpenAI]:
    skerry = new_home(tmp_path_factory.mktemp("openai"), default_model)
    skerry.up()
    config = json.loads((skerry.home / "config.json").read_text())
    with OpenAI(base_url=f"{config['url']}/v1", api_key=config["api_token"]) as client:
        yield client
    assert skerry("down", "--timeout", "5").returncode == 0


def test_a_prompt_is_counted_as_it_is_then_read(client: OpenAI) -> None:
    instructions, question = "Answer in one word.", "Where is the Eiffel Tower?"
    counted = client.responses.input_tokens.count(
        model=MODEL, instructions=instructions, input=question
    )
    response = client.responses.create(
        model=MODEL, instructions=instructions, input=question, max_output_tokens=4
    )
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens
    more = client.responses.input_tokens.count(
        model=MODEL, input="And Big Ben?", previous_response_id=response.id
    )
    assert more.input_tokens > counted.input_tokens - 10  # the instructions are not part of it


def test_the_items_of_a_conversation(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One?", max_output_tokens=4)
    second = client.responses.create(
        model=MODEL, input="Two?", previous_response_id=first.id, max_output_tokens=4
    )
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message"] * 3
    assert items[1].id == first.output[0].id
    texts = [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]
    assert texts == ["One?", first.output_text, "Two?"]


def test_only_allowed_tools_are_called_and_the_prompt_stays_in_the_cache(client: OpenAI) -> None:
    def ask(*names: str) -> tuple[set[str], int]:
        allowed: list[dict[str, object]] = [
            {"type": "function", "function": {"name": name}} for name in names
        ]
        completion = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is 7 minus 3? And 5 times 6?"}],
            tools=TOOLS,
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": allowed},
            },
            max_tokens=60,
            temperature=1.5,
            seed=1,
        )
        calls = completion.choices[0].message.tool_calls or []
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        names_called = {call.function.name for call in calls if call.type == "function"}
        return names_called, completion.usage.prompt_tokens_details.cached_tokens or 0

    called, _ = ask("multiply")
    assert called == {"multiply"}
    called, cached = ask("add", "subtract")
    assert called
    assert called <= {"add", "subtract"}
    assert cached >= 64  # of the same tools


def test_many_choices_are_those_that_each_gives_alone(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a fruit."}],
        n=32,
        max_tokens=3,
        seed=5,
        temperature=1.0,
    )
    texts = [choice.message.content for choice in completion.choices]
    assert len(texts) == 32
    assert len(set(texts)) > 3
    few = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a fruit."}],
        n=2,
        max_tokens=3,
        seed=5,
        temperature=1.0,
    )
    assert [choice.message.content for choice in few.choices] == texts[:2]


def test_a_gateway_in_front(client: OpenAI) -> None:
    """Its URL as OpenAI's client is told of it, and a Worker's binding with a gateway."""
    root = str(client.base_url).removesuffix("/v1/")
    headers = {"authorization": f"Bearer {client.api_key}", "cf-consn-model-id": MODEL}
    with httpx.Client(trust_env=False, headers=headers, base_url=root) as http:
        url = http.get("/ai-gateway/gateways/mine/url/compat").json()["result"]["url"]
        options = {"gateway": {"id": "mine", "cacheTtl": 60, "requestTimeoutMs": 60_000}}
        asked = {"inputs": {"prompt": "Name a fruit.", "max_tokens": 8}, "options": options}
        first, second = (http.post("/ai-gateway/run?version=3", json=asked) for _ in range(2))
        told = [each.headers["cf-aig-cache-status"] for each in (first, second)]
        assert told == ["MISS", "HIT"]
        assert first.json() == second.json()
    through = client.with_options(base_url=url, default_headers={"cf-aig-cache-key": "fruit"})
    texts = {
        through.chat.completions.create(
            model=f"workers-ai/{MODEL}",
            messages=[{"role": "user", "content": question}],
            max_tokens=8,
            temperature=2,
        )
        .choices[0]
        .message.content
        for question in ("Name a fruit.", "Name another one.")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_packed_body(client: OpenAI, coding: str, pack: Callable[[bytes], bytes]) -> None:
    body = {"model": MODEL, "prompt": "The sea is " * 50, "max_tokens": 1, "temperature": 0}
    packed = pack(json.dumps(body).encode())
    assert len(packed) < 200
    headers = {"authorization": f"Bearer {client.api_key}", "content-encoding": coding}
    url = f"{client.base_url}completions"
    with httpx.Client(trust_env=False, headers=headers) as http:
        assert http.post(url, content=packed).json()["usage"]["prompt_tokens"] > 150


def test_ordinary_tools_are_called_and_what_is_not_held_is_named(client: OpenAI) -> None:
    """The real tokenizer compiles what is left."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "user": {"type": "string", "pattern": r"^(?!admin$)\w+$", "maxLength": 8},
            "slug": {"type": "string", "pattern": "^[a-z]{2,4}(-[a-z]{2,4})?$"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True,
                     "maxItems": 3},
            "note": {"type": "string", "nullable": True, "format": "markdown", "maxLength": 8},
            "id": {"type": "integer", "format": "int64", "minimum": -9223372036854775808},
        },
        "required": ["user", "slug", "tags", "note", "id"],
        "unevaluatedProperties": False,
    }  # fmt: skip
    properties = schema["properties"]
    held = schema | {"properties": properties | {"user": {"type": "string", "maxLength": 8}}}
    held["properties"]["note"] = {"type": ["string", "null"], "maxLength": 8}
    held["properties"]["tags"] = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}
    function: FunctionDefinition = {"name": "save", "parameters": schema}
    where = "tools[0].function.parameters.properties"
    for seed in range(3):
        reply = client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Save it."}],
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=160,
            seed=seed,
        )
        assert reply.headers["x-skerry-unenforced"].split(", ") == [
            f"{where}.id.format", f"{where}.id.minimum", f"{where}.note.format",
            f"{where}.tags.uniqueItems", f"{where}.user.pattern",
        ]  # fmt: skip
        [call] = reply.parse().choices[0].message.tool_calls or []
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        jsonschema.Draft202012Validator(held).validate(arguments)
    function["strict"] = True
    why = r"properties\.user\.pattern: the pattern .* look-around"
    with pytest.raises(BadRequestError, match=why):
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Save it."}],
            tools=[{"type": "function", "function": function}],
        )
