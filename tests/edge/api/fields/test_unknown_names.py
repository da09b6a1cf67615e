"""Names that no dialect knows: mistakes are refused, all else is in a header."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct
from tests.edge.api.fields.dialects import DIALECTS, TOOL, TURNS
from tests.edge.scripted_region import MODEL
from tests.edge.support import Deployment

from skerry.errors import InvalidInput
from skerry.wire import TextGenerationInput
from skerry_edge.api.bodies import Body
from skerry_edge.api.fields import HEADER, header_of
from skerry_edge.api.workers_ai import native


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("promt", "prompt"),
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("topp", "top_p"),
        ("toop_k", "top_k"),
        ("Stream", "stream"),
        ("imag", "image"),
    ],
)
def test_a_name_that_was_typed_wrong_is_refused(edge: Deployment, typed: str, meant: str) -> None:
    reply = edge.run(prompt="x", **{typed: 3})
    assert reply.status_code == 400
    [error] = reply.json()["errors"]
    assert f"{typed}: no such field; did you mean {meant}?" in error["message"]


def test_other_unknown_names_are_in_the_header(edge: Deployment) -> None:
    """Code of Workers passes what it likes."""
    reply = edge.run(prompt="x", customer={"id": 1}, options={"whatever": 1}, guidance=None)
    assert reply.status_code == 200
    assert reply.headers[HEADER] == "customer, guidance, options.whatever"
    streamed = edge.run(prompt="x", stream=True, customer=1)
    assert streamed.headers[HEADER] == "customer"
    assert HEADER not in edge.run(prompt="x").headers
    assert edge.chat(max_token=3).headers[HEADER] == "max_token"  # as in other OpenAI servers


def test_unknown_names_inside_of_lists_are_named_once(edge: Deployment) -> None:
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "hi", "weight": 2}], "images": ["x"]},
        {"role": "assistant", "content": "ho", "refusal": None, "annotations": [], "prefix": True},
        {"role": "user", "content": "hi", "images": ["y"]},
    ]
    function = {"name": "f", "parameters": {"type": "object"}, "returns": {"type": "string"}}
    tools = [{"type": "function", "function": function, "timeout": 3}]
    reply = edge.chat(messages=turns, tools=tools)
    assert reply.headers[HEADER].split(", ") == [
        "messages[].content[].weight", "messages[].images", "messages[].prefix",
        "tools[].function.returns", "tools[].timeout",
    ]  # fmt: skip
    whole = edge.chat(messages=[{"role": "user", "content": "hi"}], tools=[TOOL])
    assert HEADER not in whole.headers
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", "x": 1}}
    called = {"role": "assistant", "content": None, "tool_calls": [call | {"signature": "s"}]}
    reply = edge.chat(messages=[*turns[:1], called], tools=[TOOL])
    assert reply.headers[HEADER].split(", ")[2:] == [
        "messages[].tool_calls[].function.x", "messages[].tool_calls[].signature",
    ]  # fmt: skip
    assert edge.chat(max_tokens=5, max_completion_tokens=9).headers[HEADER] == "max_tokens"
    for wrong, at in (
        ({"messages": [{"role": "user", "contant": "hi"}]}, "messages[].contant"),
        ({"prompt": "x", "options": {"gateway": {"cacheTTL": 60}}}, "options.gateway.cacheTTL"),
    ):
        reply = edge.client.post(edge.run_path, json=wrong)
        assert reply.status_code == 400
        assert f"{at}: no such field; did you mean" in reply.text


def test_unknown_names_in_tools_choices_and_formats_are_named(edge: Deployment) -> None:
    """Their structs are those of the schemas, which have fields of their own."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "title": "A"}
    flat = {"name": "f", "parameters": schema, "input_schema": schema}
    bare, function = {"type": "json_schema", "json_schema": schema}, {"type": "function"}
    whole = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    wrong = {"type": "json_schema", "json_schema": {"schema": schema, "stritc": True}, "x": 1}
    chosen = {"type": "tool", "name": "f", "mode": "auto"}
    asked: list[tuple[str, dict[str, Any], str | None]] = [
        ("chat/completions", {"response_format": bare}, None),
        ("chat/completions", {"response_format": whole}, None),
        ("chat/completions", {"response_format": wrong},
         "response_format.json_schema.stritc, response_format.x"),
        ("chat/completions", {"tools": [TOOL | {"strict": True}]}, "tools[].strict"),
        ("chat/completions", {"tools": [TOOL], "tool_choice": TOOL | {"parallel": 1}},
         "tool_choice.parallel"),
        ("messages", {"tools": [flat], "tool_choice": chosen},
         "tool_choice.mode, tools[].parameters"),
        ("responses", {"tools": [function | flat], "tool_choice": function | {"name": "f", "y": 1}},
         "tool_choice.y, tools[].input_schema"),
    ]  # fmt: skip
    least = {each.path.removeprefix("/v1/"): each.least for each in DIALECTS}
    for path, body, named in asked:
        url = edge.chat_path.replace("chat/completions", path)
        reply = edge.client.post(url, json=least[path] | body)
        assert (reply.status_code, reply.headers.get(HEADER)) == (200, named), reply.text
    reply = edge.run(prompt="x", response_format=wrong)
    assert "response_format.json_schema.stritc: no such field; did you mean strict?" in reply.text


def test_what_an_answer_had_is_no_field_of_the_next_request(edge: Deployment) -> None:
    path = edge.chat_path.replace("chat/completions", "responses")
    first = edge.client.post(path, json={"model": MODEL, "input": "hi"}).json()
    items = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "?"}]
    again = edge.client.post(path, json={"model": MODEL, "input": items, "store": False})
    assert (again.status_code, again.headers.get(HEADER)) == (200, None)


def test_many_unknown_names_are_not_looked_at_for_mistakes() -> None:
    """Each costs time on the event loop."""
    body = Body(TextGenerationInput, corrects=True)
    names = [*(f"q{number:04}" for number in range(100)), "promt"]
    encoded = ("{" + ",".join(f'"{name}":1' for name in names) + "}").encode()
    assert body.decode(encoded)[1] == names
    with pytest.raises(InvalidInput, match="did you mean prompt"):
        body.decode(b'{"promt":1}')


def test_a_strict_request_is_refused_for_them(edge: Deployment) -> None:
    for body in ({"customer": 1}, {"reasoning_effort": "low"}):
        reply = edge.run(prompt="x", options={"strict": True}, **body)
        assert reply.status_code == 400
        assert f"{next(iter(body))}: no such field here" in reply.text
    assert edge.chat(options={"strict": True}, foo=1).status_code == 400
    assert edge.run(prompt="x", options={"strict": True}).status_code == 200
    headers = {"cf-consn-model-id": MODEL}
    body = {"inputs": {"prompt": "x", "customer": 1}, "options": {"strict": True}}
    assert edge.client.post("/run?version=3", json=body, headers=headers).status_code == 400


def test_hints_inside_of_messages_are_named(edge: Deployment) -> None:
    path = edge.chat_path.replace("chat/completions", "messages")
    text = {"type": "text", "text": "hi"}
    turns: list[Any] = [{"role": "user", "content": [text]}]
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": turns}
    tool = {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}
    assert edge.client.post(path, json=body | {"tools": [tool]}).headers[HEADER] == "defer_loading"
    body["messages"] = [{"role": "user", "content": 'a "defer_loading" in a text'}]
    assert HEADER not in edge.client.post(path, json=body).headers
    body["output_config"] = {"effort": "low"}
    assert edge.client.post(path, json=body).headers[HEADER] == "output_config.effort"


def test_names_in_the_header_are_few_short_and_plain() -> None:
    assert header_of(["b\r\nc", "a" * 100]) == f"{'a' * 64}, b??c"
    many = header_of([f"f{number:02}" for number in range(40)])
    assert many.endswith("f31, ...8")
    body = Body(TextGenerationInput, corrects=True)
    names = [f"x{number}-{'y' * 40}" for number in range(1000)]
    _, ignored = body.decode(("{" + ",".join(f'"{name}":1' for name in names) + "}").encode())
    assert ignored == names


def edits(one: str, other: str) -> int:
    """The plain recursion of the definition."""
    if not one or not other:
        return len(one) + len(other)
    same = edits(one[1:], other[1:]) + (one[0] != other[0])
    return min(same, edits(one[1:], other) + 1, edits(one, other[1:]) + 1)


@pytest.mark.parametrize("known", ["seed", "stop"])
@pytest.mark.parametrize("typed", ["sed", "sead", "stops", "tsop", "sd", "steps", "e", "needs"])
def test_two_edits_are_a_mistake(known: str, typed: str) -> None:
    class Known(Struct, rename={"field": known}):
        field: int = 0

    try:
        Body(Known, corrects=True).decode(f'{{"{typed}":1}}'.encode())
        refused = False
    except InvalidInput:
        refused = True
    assert refused == (edits(typed, known) <= 2)


# --- Anthropic's structured output ---------------------------------------------------------------

PET = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize("new", [True, False])
def test_the_format_of_messages_is_held(edge: Deployment, new: bool) -> None:
    path = edge.chat_path.replace("chat/completions", "messages")
    form: dict[str, Any] = {"type": "json_schema", "schema": PET}
    asked = {"output_config": {"format": form}} if new else {"output_format": form}
    body = {"model": MODEL, "max_tokens": 8, "messages": TURNS} | asked
    assert edge.client.post(path, json=body).status_code == 200
    grammar = edge.region.submits[-1].grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"
    assert '"age"' in grammar.source
    name = "output_config.format" if new else "output_format"
    form["schema"] = {"type": "object", "properties": {"a": {"not": {}}}}
    reply = edge.client.post(path, json=body)
    assert reply.status_code == 400
    assert f"{name}.schema.properties.a.not" in reply.text
    form["schema"] = PET
    begun = [*TURNS, {"role": "assistant", "content": "{"}]
    reply = edge.client.post(path, json=body | {"messages": begun})
    assert reply.status_code == 400
    assert name in reply.json()["error"]["message"]
    both = body | {"output_config": {"format": form}, "output_format": form}
    assert "cannot be combined" in edge.client.post(path, json=both).text


def test_no_request_brings_a_template(edge: Deployment) -> None:
    """It would run at the edge: the model's own is used, and the answer says so."""
    evil = "{{ ''.__class__.__mro__ }}"
    inside = "chat_template_kwargs.chat_template"
    assert edge.chat().status_code == 200
    for field, value, named in (
        ("chat_template", evil, "chat_template"),
        ("template", evil, "template"),
        ("chat_template_kwargs", {"chat_template": evil}, inside),
    ):
        reply = edge.chat(**{field: value})
        assert (reply.status_code, reply.headers[HEADER]) == (200, named)
    prompts = {tuple(submit.prompt_ids) for submit in edge.region.submits[-4:]}
    assert len(prompts) == 1


NATIVE = native._input_body
TURN = b'{"messages": [{"role": "user", "content": "hi"%b}]%b}'


@pytest.mark.parametrize(
    ("body", "left_out"),
    [
        (TURN % (b"", b""), []),
        (TURN % (b', "colour": 1', b""), ["messages[].colour"]),
        (TURN % (b"", b', "options": {"colour": 1}'), ["options.colour"]),
        (TURN % (b', "tool_calls": [{"colour": 1}]', b""), ["messages[].tool_calls[].colour"]),
        (TURN % (b"", b', "t\\u006fol_choice": {"colour": 1}'), ["tool_choice.colour"]),
    ],
    ids=["plain", "of a turn", "of options", "of a call", "of a name with an escape"],
)
def test_fields_are_left_out_wherever_they_stand(body: bytes, left_out: list[str]) -> None:
    """Also where structs have an object whole, and its name is not in the body as it stands."""
    asked, found = NATIVE.decode(body)
    assert found == left_out
    assert isinstance(asked, TextGenerationInput)
    assert asked.messages is not None
    assert asked.messages[0].content == "hi"
