"""Requests that were made to hurt, by a seed: schemas, expressions, grammars, tools, bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from tests.regions.node.test_hostile_grammars import ebnf, expression, schema

from skerry.wire import TextGenerationInput
from skerry.wire.openai import ChatCompletionRequest, CompletionRequest
from skerry_edge.api.anthropic.messages_wire import MessagesRequest
from skerry_edge.api.responses.responses_wire import ResponsesRequest

NAMES = ["add", "a" * 128, "a" * 129, "", 'quo"te', "日本", "a\nb", "</tool_call>", "\0"]
WORDS = ["", "x", "<end>", "<tool_call>", "\ud7ff\U0010ffff", "a" * 300, '{"', "]]]", "\0\x1f", "."]
TURN = b'{"role":"user","content":"a"}'
NUMBERS = [0, 1, -1, 2, 0.5, 1e-8, 1e300, -(1 << 70), 1 << 70, 4, 16]


@dataclass(frozen=True, slots=True)
class Attack:
    """One request: a path behind the account's `…/ai`, and the body's bytes."""

    kind: str
    path: str
    body: bytes


def attacks(model: str, seed: int, number: int) -> list[Attack]:
    """So many requests, always the same ones for a seed."""
    rng = Random(seed)
    makers: list[Callable[[Random, str], Attack]] = [
        _schema, _expression, _grammar, _tools, _tools, _fields, _fields, _bytes,
    ]  # fmt: skip
    return [rng.choice(makers)(rng, model) for _ in range(number)]


def _schema(rng: Random, model: str) -> Attack:
    form = {"type": "json_schema", "json_schema": schema(rng)}
    return _ask(rng, model, "schema", {"response_format": form})


def _expression(rng: Random, model: str) -> Attack:
    return _ask(rng, model, "expression", {"guided_regex": expression(rng)})


def _grammar(rng: Random, model: str) -> Attack:
    field: dict[str, Any] = {"guided_grammar": ebnf(rng).source}
    if rng.random() < 0.3:
        choices = [_text(rng) for _ in range(rng.choice([0, 1, 50, 1001]))]
        field = {"guided_choice": choices}
    return _ask(rng, model, "grammar", field)


def _tools(rng: Random, model: str) -> Attack:
    """Any number of tools, of which at most one is odd: else nearly all lists were refused."""
    tools = [_tool(f"tool_{number}") for number in range(rng.choice([0, 1, 2, 5, 40, 128, 129]))]
    if tools and rng.random() < 0.6:
        tools[rng.randrange(len(tools))] = _odd_tool(rng)
    names = [name for tool in tools if isinstance(name := tool.get("name"), str)]
    named = rng.choice(names or ["x"])
    choice = rng.choice(
        [None, "auto", "none", "required", "any", {"type": "function", "function": {"name": named}}]
    )
    fields: dict[str, Any] = {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": rng.choice([None, True, False]),
    }
    if rng.random() < 0.2:
        fields["response_format"] = {"type": "json_object"}
    if rng.random() < 0.3:
        fields["messages"] = [_turn(rng) for _ in range(rng.randint(0, 4))]
    return _ask(rng, model, "tools", fields)


def _tool(name: str) -> dict[str, Any]:
    number = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"name": name, "description": "A tool.", "parameters": number}


def _odd_tool(rng: Random) -> dict[str, Any]:
    name = rng.choice(NAMES) if rng.random() < 0.5 else "odd"
    parameters = schema(rng, depth=3) if rng.random() < 0.5 else {"type": "object"}
    flat: dict[str, Any] = {"name": name, "description": _text(rng), "parameters": parameters}
    kind = rng.choice(["custom", 3, None]) if rng.random() < 0.1 else "function"
    return rng.choice([flat, {"type": kind, "function": flat}, {**flat, "type": kind}])


def _fields(rng: Random, model: str) -> Attack:
    """A request of any endpoint, of which some fields hold anything."""
    endpoints: list[tuple[str, type[msgspec.Struct], dict[str, Any]]] = [
        (f"/run/{model}", TextGenerationInput, {"prompt": "hi", "max_tokens": 4}),
        ("/v1/chat/completions", ChatCompletionRequest, {"messages": [_turn(rng)]}),
        ("/v1/completions", CompletionRequest, {"prompt": "hi", "max_tokens": 4}),
        ("/v1/messages", MessagesRequest, {"messages": [_turn(rng)], "max_tokens": 4}),
        ("/v1/responses", ResponsesRequest, {"input": "hi", "max_output_tokens": 4}),
    ]
    path, kind, good = rng.choice(endpoints)
    body = {"model": model, **good}
    for name in rng.sample(kind.__struct_fields__, rng.randint(0, 4)):
        body[name] = value(rng)
    return Attack("fields", path, msgspec.json.encode(body))


def _bytes(rng: Random, model: str) -> Attack:
    """What is no JSON, or JSON that no reader expects."""
    deep = rng.choice([10, 1000, 100_000])
    body = rng.choice(
        [
            rng.randbytes(rng.randint(0, 300)),
            b"[" * deep,
            b'{"prompt":' * deep,
            b'{"prompt":"' + b"a" * deep + b'","max_tokens":2}',
            b'{"prompt":"\\ud800","max_tokens":2}',
            b'{"prompt":"hi","prompt":"ho","max_tokens":2}',
            b'{"prompt":"hi","max_tokens":' + b"9" * deep + b"}",
            b'{"prompt":"hi","temperature":NaN}',
            b'{"messages":[' + b",".join([TURN] * min(deep, 3000)) + b"]}",
        ]
    )  # fmt: skip
    return Attack("bytes", rng.choice([f"/run/{model}", "/v1/chat/completions"]), body)


def _ask(rng: Random, model: str, kind: str, fields: dict[str, Any]) -> Attack:
    """In either dialect, streamed or not, with few tokens so that it is soon over."""
    body = {
        "messages": [{"role": "user", "content": _text(rng)}],
        "max_tokens": rng.choice([1, 8, 24]),
        "stream": rng.random() < 0.3,
        "temperature": rng.choice([0, 1, 5]),
        "seed": rng.randrange(1 << 32),
        **fields,
    }
    if rng.random() < 0.5:
        return Attack(kind, f"/run/{model}", msgspec.json.encode(body))
    return Attack(kind, "/v1/chat/completions", msgspec.json.encode({"model": model, **body}))


def _turn(rng: Random) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "role": rng.choice(["user", "assistant", "system", "tool", "function", "x" * 64]),
        "content": _text(rng),
    }
    if rng.random() < 0.2:
        turn[rng.choice(["content", "name", "tool_calls", "tool_call_id"])] = value(rng)
    return turn


def _text(rng: Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 4)))


def value(rng: Random, depth: int = 0) -> Any:
    """Any JSON value."""
    match rng.randrange(7 if depth < 3 else 5):
        case 0:
            return rng.choice([None, True, False])
        case 1 | 2:
            return rng.choice(NUMBERS)
        case 3 | 4:
            return _text(rng)
        case 5:
            return [value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
        case _:
            return {_text(rng): value(rng, depth + 1) for _ in range(rng.randint(0, 4))}
