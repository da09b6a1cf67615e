"""Structured output and tools by a platform of real processes, over the real model's tokenizer.

The toy model says anything at all, so that only the grammars can make sense of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from tests.e2e.command import MODEL, Skerry, new_home

from skerry import AI, InvalidInput
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

PET: dict[str, Any] = {
    "$defs": {"Toy": {"type": "object", "properties": {"name": {"type": "string"}},
                      "required": ["name"]}},
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "toys": {"type": "array", "items": {"$ref": "#/$defs/Toy"}, "minItems": 1},
        "weight": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
    },
    "required": ["name", "born", "toys", "weight"],
}  # fmt: skip
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOPOLOGY = f"""
regions: [{{name: here, iata: FRA}}]
pools:
  - {{name: chat, region: here, role: hybrid, model: "{MODEL}", runner: toy, replicas: 2}}
edges: [{{name: edge, region: here, port: 0}}]
"""


@pytest.fixture(
    scope="module", params=["one process", pytest.param("topology", marks=pytest.mark.slow)]
)
def ai(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    default_model: ModelFiles,
) -> Iterator[AI]:
    folder = tmp_path_factory.mktemp("structured")
    skerry: Skerry = new_home(folder, default_model)
    arguments: list[str] = []
    if request.param == "topology":
        (folder / "topology.yaml").write_text(TOPOLOGY)
        arguments = ["--topology", str(folder / "topology.yaml")]
        done = skerry("up", "--detach", *arguments)
        assert done.returncode == 0, done.stderr
    else:
        skerry.up()
    with skerry.ai() as ai:
        yield ai
    assert skerry("down", "--timeout", "5").returncode == 0


def test_four_required_strings_fit_into_64_tokens(ai: AI) -> None:
    """What was found: 12 of 12 ended by `max_tokens` before their JSON was whole."""
    names = ["title", "author", "summary", "publisher"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
    }
    for seed in range(4):
        asked: dict[str, Any] = {
            "prompt": "Describe a book.",
            "response_format": {"type": "json_schema", "json_schema": schema},
            "max_tokens": 64,
            "seed": seed,
        }
        result = ai.run(MODEL, asked)
        assert result.usage.completion_tokens <= 64
        jsonschema.validate(json.loads(json.dumps(result["response"])), schema)


def test_json_is_valid_however_few_tokens_there_are(ai: AI) -> None:
    for max_tokens in (64, 100, 200):
        asked: dict[str, Any] = {
            "prompt": "Describe a pet.",
            "response_format": {"type": "json_schema", "json_schema": PET},
            "max_tokens": max_tokens,
            "seed": max_tokens,
        }
        result = ai.run(MODEL, asked)
        assert result.usage.completion_tokens <= max_tokens
        jsonschema.validate(json.loads(json.dumps(result["response"])), PET)


def test_many_at_once_give_what_each_gives_alone(ai: AI) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": "x", "guided_regex": r"[a-f]{4}-\d{3}", "temperature": 2.0, "seed": seed}
        for seed in range(6)
    ]
    alone = [ai.run(MODEL, each)["response"] for each in asked]
    together: dict[int, Any] = {}

    def ask(index: int) -> None:
        together[index] = ai.run(MODEL, asked[index])["response"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(len(asked))] == alone


def test_a_tool_is_called(ai: AI) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": ADD}}]
    asked: dict[str, Any] = {
        "prompt": "2+3?",
        "tools": tools,
        "tool_choice": "required",
        "max_tokens": 100,
    }
    calls = ai.run(MODEL, asked)["tool_calls"]
    assert calls
    for call in calls:
        assert call["name"] == "add"
        jsonschema.validate(call["arguments"], ADD)


def test_a_grammar_that_cannot_be_used(ai: AI) -> None:
    with pytest.raises(InvalidInput, match=r"the regex /\(/ cannot be used: unclosed group"):
        ai.run(MODEL, {"prompt": "x", "guided_regex": "("})
    asked: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {"properties": {"a": {"not": {}}}},
    }
    with pytest.raises(InvalidInput, match=r"json_schema\.properties\.a\.not"):
        ai.run(MODEL, {"prompt": "x", "response_format": asked})
