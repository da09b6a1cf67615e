"""Calls of tools against `max_tokens`: a real engine and tokenizer, every dialect, streamed or not.

Whatever the limit, an answer is a whole call as the model wrote it, or text without a trace of
markup and `length`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.byte_grammars import END, compiler, text
from tests.core.byte_grammars import MARK as MARK_ID
from tests.edge.engine_edge import EngineEdge, engine_edge
from tests.edge.tool_dialects import DIALECTS, Said, ask_with_tool

from skerry_core.grammar.lowering import lower
from skerry_edge.families.table import LLAMA, MISTRAL_LIST, TAUGHT
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import plan_fields
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"name": "add", "parameters": PARAMETERS}
LIMITS = (1, 2, 5, 6, 7, 8, 9, 10, 11, 20, 28, 31, 32, 33, 34, 35, 36, 38, 39, 60)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 21, "b": 34}}\n</tool_call>'
MARK = "<tool_call>"


@pytest.fixture(scope="module")
def edge(
    default_model: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineEdge]:
    with engine_edge(default_model, tmp_path_factory.mktemp("calls")) as edge:
        yield edge


def ask(edge: EngineEdge, dialect: str, max_tokens: int, *, stream: bool, **fields: Any) -> Said:
    return ask_with_tool(edge, dialect, PARAMETERS, max_tokens, stream=stream, **fields)


def check(said: Said, *, text: str, limit: int) -> None:
    """Either the model's call, and all of it, or what is cut: text without markup, and no call
    whose values were shortened to fit."""
    assert "<tool" not in said.text
    assert not any(said.text.endswith(MARK[:size]) for size in range(1, len(MARK)))
    assert MARK not in said.body
    assert said.tokens <= limit
    assert said.calls in ([], [{"a": 21, "b": 34}])
    if not said.calls:
        assert said.text[: len(text)] == text[: len(said.text)]
        assert said.reason in ("", "length")  # natively there is none


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["", "Let me add.\n"])
def test_at_every_limit(edge: EngineEdge, dialect: str, text: str, stream: bool) -> None:
    """The model wants to call, and then to end: it calls where there is room, else it is cut."""
    edge.says(text + CALL)
    answers = {limit: ask(edge, dialect, limit, stream=stream) for limit in LIMITS}
    for limit, said in answers.items():
        check(said, text=text, limit=limit)
    size = len(edge.text.encode(text + CALL))
    assert not any(answers[limit].calls for limit in LIMITS if limit < size)
    assert all(answers[limit].calls for limit in LIMITS if limit > size + 4)
    assert any(answers[limit].calls for limit in LIMITS)
    ample = [answers[limit] for limit in LIMITS if limit > size + 4]
    assert all(said.reason in ("", "calls") for said in ample)


def test_what_is_no_call_ends_by_itself(edge: EngineEdge) -> None:
    edge.says("It is 55.")
    for limit in (9, 33, 60):
        said = ask(edge, "chat", limit, stream=False)
        assert (said.text, said.reason) == ("It is 55.", "stop")
    words = "See <toolbar>, <tool_calls>, a < b"
    edge.says(words + ".")
    assert ask(edge, "chat", 100, stream=False).text == words + "."
    edge.says(words + " <")  # may be half a mark, so that it is no end
    said = ask(edge, "chat", 100, stream=False)
    assert said.text.startswith(words + " <")
    assert len(said.text) > len(words) + 2


def test_a_call_after_a_call(edge: EngineEdge) -> None:
    """The second one does not fit: the first stands, and the reason says that there was more."""
    edge.says(f"{CALL}\n{CALL}")
    for limit in (60, 65, 80):
        said = ask(edge, "messages", limit, stream=False)
        assert said.calls == [{"a": 21, "b": 34}] * (1 + (limit == 80))
        assert said.reason == ("calls" if limit == 80 else "length")


FAMILIES = {"taught": TAUGHT, "llama": LLAMA, "mistral": MISTRAL_LIST.bound(lambda token: MARK_ID)}
ARGUMENTS = '{"a": 1, "b": 2}'
CALLS = {
    "taught": f'<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "llama": f'{{"name": "add", "parameters": {ARGUMENTS}}}',
    "mistral": f'[{{"name": "add", "arguments": {ARGUMENTS}}}]',
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_familys_mark(name: str) -> None:
    """With a token for each byte: a call is begun where it fits to the byte, and not below."""
    family = FAMILIES[name]
    grammar = plan_fields(family, OutputAsked(tools=[TOOL])).grammar
    assert grammar is not None
    assert grammar.calls is not None
    automaton = compiler().compile(lower("ebnf", grammar.source), grammar.calls)
    call = [*([MARK_ID] if name == "mistral" else []), *CALLS[name].encode()]
    for limit in (len(call) - 1, len(call)):
        matcher, ids = automaton.matcher(), list[int]()
        while END not in ids and not matcher.is_finished and len(ids) < limit:
            left = limit - len(ids) - 1
            matcher.fill(left)
            assert matcher.mask is not None
            wanted = call[len(ids)] if ids == call[: len(ids)] else END
            is_allowed = matcher.mask[wanted >> 5] >> (wanted & 31) & 1
            ids.append(matcher.choose(wanted if is_allowed else ord("x"), left))
        assert (ids == call) is (limit == len(call))
        if limit < len(call):
            assert MARK_ID not in ids
            assert text(ids) == ("<toox" if name == "taught" else "x")  # as in `<tooth>`


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_call_that_is_required_is_cut_where_none_fits(edge: EngineEdge, dialect: str) -> None:
    edge.says(CALL)
    choice: Any = {"type": "any"} if dialect == "messages" else "required"
    for stream in (False, True):
        for limit in (1, 3, 5, 6, 20):
            said = ask(edge, dialect, limit, stream=stream, tool_choice=choice)
            assert said.text == ""
            assert said.calls == [] or limit == 20  # Anthropic's has what there is of its input
            assert said.reason in ("", "length")
            assert MARK[:5] not in said.body
        said = ask(edge, dialect, 60, stream=stream, tool_choice=choice)
        assert said.calls == [{"a": 21, "b": 34}]


LONG: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
JSON: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["auto", "required", "beside a format"])
def test_no_value_is_shortened_in_a_call(
    edge: EngineEdge, dialect: str, kind: str, stream: bool
) -> None:
    """Whoever runs calls would write half a file: what does not fit is cut, and said to be."""
    content = "one two three four five six seven eight nine ten"
    arguments = f'{{"path": "a.txt", "content": "{content}"}}'
    edge.says(CALL.replace('{"a": 21, "b": 34}', arguments))
    fields: dict[str, Any] = {}
    if kind == "required":
        fields["tool_choice"] = {"type": "any"} if dialect == "messages" else "required"
    elif kind == "beside a format":
        match dialect:
            case "messages":
                fields["output_config"] = {"format": JSON}
            case "responses":
                fields["text"] = {"format": JSON | {"name": "x"}}
            case _:
                form = {"type": "json_schema", "json_schema": {"schema": JSON["schema"]}}
                fields["response_format"] = form
    for limit in (36, 40, 44, 90):
        said = ask_with_tool(edge, dialect, LONG, limit, stream=stream, **fields)
        whole = {"path": "a.txt", "content": content}
        assert said.calls == ([whole] if limit == 90 else []), limit
        assert said.reason in ("", "calls" if limit == 90 else "length")
        assert MARK not in said.text
