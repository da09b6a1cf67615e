"""Random schemas in every dialect under short and long limits: valid or `length`, and no markup.

The model babbles, or wants to call a tool; engine, tokenizer, grammars and edge are real.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from tests.core.grammar.generated_schemas import Schema, generated, shortest_text
from tests.edge.engine_edge import ACCOUNT, DEFAULT, EngineEdge, engine_edge
from tests.edge.tool_dialects import DIALECTS, ask_with_tool

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

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


def check_schema(edge: EngineEdge, dialect: str, seed: int) -> None:
    """JSON is whole and valid where its shortest form fits, and valid or cut where not."""
    edge.says("Well.")
    schema, value = generated(seed)
    shortest = len(edge.text.encode(shortest_text(value)))
    ample = math.ceil(1.1 * shortest) + 4
    for limit in (max(1, shortest // 2), ample):
        text, is_cut = ask(edge, dialect, schema, limit, seed)
        assert MARK not in text
        if not is_cut:
            jsonschema.validate(json.loads(text), schema)
        assert is_cut is False or limit < ample, (seed, limit, text)


def check_tool(edge: EngineEdge, dialect: str, seed: int) -> None:
    """The same of a tool's arguments, which the model begins to write and then babbles on."""
    schema, value = generated(seed)
    edge.says(f"{MARK}\n")
    shortest = len(edge.text.encode(CALL % shortest_text(value)))
    ample = math.ceil(1.1 * shortest) + 4
    for limit in (max(1, shortest // 2), ample):
        prompt = f"Invent number {seed}."
        said = ask_with_tool(edge, dialect, schema, limit, prompt=prompt)
        assert "<tool" not in said.text
        assert not any(said.text.endswith(MARK[:size]) for size in range(1, len(MARK)))
        for arguments in said.calls:
            jsonschema.validate(arguments, schema)
        if limit < shortest:
            assert not said.calls
            assert said.reason in ("", "length")
        else:
            assert said.calls, (seed, limit, said)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_schema(edge: EngineEdge, dialect: str) -> None:
    for seed in (3, 8, 19):
        check_schema(edge, dialect, seed)
        check_tool(edge, dialect, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_schemas(edge: EngineEdge, dialect: str, start: int) -> None:
    for seed in range(start, start + 50):
        check_schema(edge, dialect, seed)
        check_tool(edge, dialect, seed)
