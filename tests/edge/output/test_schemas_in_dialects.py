"""Random schemas in every dialect under short and long limits: valid or `length`, and no markup.

The model babbles, or wants to call a tool; engine, tokenizer, grammars and edge are real.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jsonschema
import pytest
from tests.core.grammar.generated_schemas import Schema, generated, shortest_text
from tests.edge.engine_edge import ACCOUNT, DEFAULT, EngineEdge, engine_edge
from tests.edge.tool_dialects import DIALECTS, Said, ask_with_tool

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

T = TypeVar("T")

MARK = "<tool_call>"
CALL = '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>'


@pytest.fixture(scope="module")
def edge(
    default_model: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineEdge]:
    with engine_edge(default_model, tmp_path_factory.mktemp("schemas")) as edge:
        edge.talker.babbles = True
        yield edge


def ask(edge: EngineEdge, dialect: str, schema: Schema, limit: int, seed: int) -> tuple[str, bool]:
    """The JSON that was answered, and whether the limit cut it."""
    messages = [{"role": "user", "content": f"Invent number {seed}."}]
    base = f"/client/v4/accounts/{ACCOUNT}/ai"
    asked: dict[str, Any] = {"model": DEFAULT, "temperature": 0}
    match dialect:
        case "native":
            wanted = {"type": "json_schema", "json_schema": schema}
            fields = {"messages": messages, "max_tokens": limit, "seed": seed, "temperature": 0}
            answer = edge.client.post(
                f"{base}/run/{DEFAULT}", json={**fields, "response_format": wanted}
            )
            got = answer.json()
            if not got["success"]:
                assert [each["code"] for each in got["errors"]] == [5024]
                return "", True
            return json.dumps(got["result"]["response"]), False
        case "chat":
            named = {"name": "made", "schema": schema}
            asked |= {"messages": messages, "max_tokens": limit, "seed": seed}
            asked["response_format"] = {"type": "json_schema", "json_schema": named}
            [choice] = edge.client.post(f"{base}/v1/chat/completions", json=asked).json()["choices"]
            return choice["message"]["content"], choice["finish_reason"] == "length"
        case "responses":
            wanted = {"type": "json_schema", "name": "made", "schema": schema}
            asked |= {"input": messages, "max_output_tokens": limit, "text": {"format": wanted}}
            got = edge.client.post(f"{base}/v1/responses", json=asked).json()
            text = "".join(part["text"] for item in got["output"] for part in item["content"])
            return text, got["status"] == "incomplete"
        case _:
            wanted = {"type": "json_schema", "schema": schema}
            asked |= {"messages": messages, "max_tokens": limit}
            asked["output_config"] = {"format": wanted}
            got = edge.client.post(f"{base}/v1/messages", json=asked).json()
            text = "".join(each["text"] for each in got["content"])
            return text, got["stop_reason"] == "max_tokens"


def in_all(ask_one: Callable[[str, int], T], limits: tuple[int, int]) -> list[tuple[int, T]]:
    """Ask in every dialect under both limits, all at once; the limit of each, and its answer."""
    asked = [(dialect, limit) for dialect in DIALECTS for limit in limits]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda each: ask_one(*each), asked))
    return [(limit, answer) for (_, limit), answer in zip(asked, answers, strict=True)]


def limits_of(edge: EngineEdge, shortest: str) -> tuple[int, int, int]:
    """The tokens of a shortest output, half of them, and as many as always suffice."""
    size = len(edge.text.encode(shortest))
    return size, max(1, size // 2), math.ceil(1.1 * size) + 4


def check_schema(edge: EngineEdge, seed: int) -> None:
    """JSON is whole and valid where its shortest form fits, and valid or cut where not."""
    edge.says("Well.")
    schema, value = generated(seed)
    _, short, ample = limits_of(edge, shortest_text(value))
    for limit, (text, is_cut) in in_all(
        lambda dialect, limit: ask(edge, dialect, schema, limit, seed), (short, ample)
    ):
        assert MARK not in text
        if not is_cut:
            jsonschema.validate(json.loads(text), schema)
        assert is_cut is False or limit < ample, (seed, limit, text)


def check_tool(edge: EngineEdge, seed: int) -> bool:
    """A tool's arguments, which the model begins to write and then babbles on, are valid or cut;
    so are those that it writes as a whole. Return whether these are what it wrote."""
    schema, value = generated(seed)
    call = CALL % shortest_text(value)
    size, short, ample = limits_of(edge, call)

    def ask_one(dialect: str, limit: int) -> Said:
        return ask_with_tool(edge, dialect, schema, limit, prompt=f"Invent number {seed}.")

    edge.says(f"{MARK}\n")
    for limit, said in in_all(ask_one, (short, ample)):
        check_text(said)
        assert len(said.calls) <= (limit >= size), (seed, limit, said)
        for arguments in said.calls:
            jsonschema.validate(arguments, schema)
        assert said.reason in ("", "length", *(["calls"] if said.calls else [])), (seed, said)
    edge.says(call)
    is_written = True
    for limit, said in in_all(ask_one, (short, 2 * ample)):
        check_text(said)
        is_written = is_written and said.calls == ([value] if limit > size else [])
        assert len(said.calls) <= (limit > size), (seed, limit, said)
        for arguments in said.calls:
            jsonschema.validate(arguments, schema)
        assert said.reason in ("", "calls" if said.calls else "length"), (seed, limit, said)
    return is_written


def check_text(said: Said) -> None:
    assert "<tool" not in said.text
    assert not any(said.text.endswith(MARK[:size]) for size in range(1, len(MARK)))


def test_a_schema(edge: EngineEdge) -> None:
    for seed in (3, 8, 19):
        check_schema(edge, seed)
        assert check_tool(edge, seed)


FAR: Schema = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 100_000}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_a_schema_without_a_known_way_is_refused_where_it_is_strict(edge: EngineEdge) -> None:
    edge.says("Well.")
    base = f"/client/v4/accounts/{ACCOUNT}/ai"
    messages = [{"role": "user", "content": "hi"}]
    asked: dict[str, Any] = {"model": DEFAULT, "messages": messages, "max_tokens": 8}

    def sent(strict: bool) -> list[tuple[str, dict[str, Any]]]:
        named = {"name": "made", "schema": FAR, "strict": strict}
        wanted = {"response_format": {"type": "json_schema", "json_schema": named}}
        text = {"format": {"type": "json_schema", **named}}
        return [
            (f"run/{DEFAULT}", {"messages": messages, "max_tokens": 8} | wanted),
            ("v1/chat/completions", asked | wanted),
            ("v1/responses", {"model": DEFAULT, "input": "hi", "text": text}),
        ]

    told = "no shortest output of this schema is known"
    for path, body in sent(True):
        reply = edge.client.post(f"{base}/{path}", json=body)
        assert (reply.status_code, told in reply.text) == (400, True), reply.text
    form = {"output_config": {"format": {"type": "json_schema", "schema": FAR}}}
    reply = edge.client.post(f"{base}/v1/messages", json=asked | form)  # is strict by itself
    assert (reply.status_code, told in reply.text) == (400, True), reply.text
    path, body = sent(False)[1]
    reply = edge.client.post(f"{base}/{path}", json=body)
    assert reply.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_schemas(edge: EngineEdge, start: int) -> None:
    """llguidance's masks lack a few tokens that its parser takes (` [[` in seeds 73 and 385): a
    model would write such a text in other tokens, the script babbles on."""
    deflected = []
    for seed in range(start, start + 50):
        check_schema(edge, seed)
        if not check_tool(edge, seed):
            deflected.append(seed)
    assert len(deflected) <= 2, deflected
