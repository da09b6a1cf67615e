"""Every field of upstream's clients works, is refused by name, or is named in a header."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from cloudflare.types.ai import ai_run_params
from msgspec import Struct
from msgspec.structs import fields as struct_fields
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params
from tests.conftest import ROOT
from tests.edge.support import MODEL, Deployment, answer, deployed

from skerry.errors import InvalidInput
from skerry.wire import TextGenerationInput
from skerry_edge.api.anthropic import messages
from skerry_edge.api.bodies import Body
from skerry_edge.api.fields import HEADER, header_of
from skerry_edge.api.openai import chat, completions, embeddings
from skerry_edge.api.responses import responses
from skerry_edge.api.workers_ai import classification, native
from skerry_edge.limits import Limits

Verdict = Literal["works", "refused", "named"]

TURNS = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
SAMPLING: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "seed": 1,
    "temperature": 0.5,
    "max_tokens": 4,
    "top_p": 0.5,
    "stream": False,
}
CACHING: dict[str, Any] = {
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
}
OPENAI: dict[str, Any] = {
    **SAMPLING,
    "logit_bias": {"65": 1},
    "n": 2,
    "stop": "x",
    "stream_options": {"include_usage": True},
}


@dataclass(frozen=True)
class Dialect:
    """A kind of request: what decodes it, upstream's types of it, and what it takes to work."""

    name: str
    body: Body[Any]
    upstream: tuple[Any, ...]
    least: dict[str, Any]  # a whole request
    works: dict[str, Any]  # a value of each field that works
    path: str = ""  # below …/ai

    @property
    def fields(self) -> list[str]:
        """Return upstream's names, but for what is in the URL."""
        return sorted({name for each in self.upstream for name in hints(each)} - {"account_id"})

    def neutral(self, name: str) -> tuple[Any, ...]:
        """Return the values of a field that ask for nothing."""
        upstream = self.body.upstream
        return {**upstream.refused, **upstream.ignored}.get(name, ())

    def verdict(self, name: str) -> Verdict | None:
        """Return how a field is handled; None where that is not decided."""
        if name == "lora":  # known, to be refused with an error of its own
            return "refused"
        if name in {each.encode_name for each in struct_fields(self.body.kind)}:
            return "works"
        if name in self.body.upstream.refused:
            return "refused"
        listed = name in self.body.upstream.ignored or name in self.body.upstream.ignored_inside
        return "named" if listed else None


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


DIALECTS = [
    Dialect(
        "Workers AI, text generation",
        native._input_body,
        (
            ai_run_params.Prompt,
            ai_run_params.Messages,
            ai_run_params.ImageToText,
            ai_run_params.Variant12,
            ai_run_params.Variant13,
        ),
        {"prompt": "x"},
        SAMPLING
        | {"top_k": 2, "repetition_penalty": 1.5, "raw": True, "ignore_eos": True}
        | {"response_format": {"type": "json_object"}, "tools": [TOOL], "functions": [FUNCTION]},
        f"/run/{MODEL}",
    ),
    Dialect(
        "Workers AI, text embeddings",
        embeddings._input_body,
        (ai_run_params.TextEmbeddings, ai_run_params.MultimodalEmbeddings),
        {"text": "x"},
        {},
    ),
    Dialect(
        "Workers AI, text classification",
        classification._text_body,
        (ai_run_params.TextClassification,),
        {"text": "x"},
        {},
    ),
    Dialect(
        "`/ai/v1/chat/completions`",
        chat._body,
        (chat_create_params.CompletionCreateParamsStreaming,),
        {"model": MODEL, "messages": TURNS},
        OPENAI
        | {"function_call": "none", "functions": [FUNCTION], "logprobs": True, "top_logprobs": 0}
        | {"max_completion_tokens": 4, "parallel_tool_calls": True, "tool_choice": "auto"}
        | CACHING
        | {"response_format": {"type": "json_object"}, "tools": [TOOL]},
        "/v1/chat/completions",
    ),
    Dialect(
        "`/ai/v1/completions`",
        completions._body,
        (completion_create_params.CompletionCreateParamsStreaming,),
        {"model": MODEL, "prompt": "x"},
        OPENAI | {"best_of": 1, "echo": True, "logprobs": 1},
        "/v1/completions",
    ),
    Dialect(
        "`/ai/v1/embeddings`",
        embeddings._request_body,
        (embedding_create_params.EmbeddingCreateParams,),
        {"model": MODEL, "input": "x"},
        {},
    ),
    Dialect(
        "`/ai/v1/responses`",
        responses._body,
        (response_create_params.ResponseCreateParamsStreaming,),
        {"model": MODEL, "input": "x"},
        {"include": ["message.output_text.logprobs"], "instructions": "x", "temperature": 0.5}
        | {"max_output_tokens": 4, "metadata": {"a": "b"}, "parallel_tool_calls": True}
        | {"store": False, "stream": False, "text": {"format": {"type": "text"}}}
        | {"tool_choice": "auto", "tools": [{"type": "function"} | FUNCTION], "top_logprobs": 0}
        | {"top_p": 0.5}
        | CACHING,
        "/v1/responses",
    ),
    Dialect(
        "`/ai/v1/responses/input_tokens`",
        responses._count_body,
        (input_token_count_params.InputTokenCountParams,),
        {"model": MODEL, "input": "x"},
        {"instructions": "x", "parallel_tool_calls": True, "text": {"format": {"type": "text"}}}
        | {"tool_choice": "auto", "tools": [{"type": "function"} | FUNCTION]},
        "/v1/responses/input_tokens",
    ),
    Dialect(
        "`/ai/v1/messages`",
        messages._body,
        (
            message_create_params.MessageCreateParamsStreaming,
            beta_create_params.MessageCreateParamsStreaming,
        ),
        {"model": MODEL, "messages": TURNS, "max_tokens": 8},
        {"output_config": {"format": FORMAT}, "stop_sequences": ["x"], "stream": False}
        | {"cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "u"}}
        | {"system": "x", "tool_choice": {"type": "auto"}, "inference_geo": "global"}
        | {"tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}]},
        "/v1/messages",
    ),
    Dialect(
        "`/ai/v1/messages/count_tokens`",
        messages._count_body,
        (
            message_count_tokens_params.MessageCountTokensParams,
            beta_count_tokens_params.MessageCountTokensParams,
        ),
        {"model": MODEL, "messages": TURNS},
        {"output_config": {"format": FORMAT}, "system": "x", "tool_choice": {"type": "auto"}}
        | {"cache_control": {"type": "ephemeral"}}
        | {"tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}]},
        "/v1/messages/count_tokens",
    ),
]
# Those of models that think, which others have no use for.
OF_THINKERS: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning": {"effort": "low", "summary": "auto"},
    "reasoning_effort": "low",
    "thinking": {"type": "adaptive"},
}
FIELDS = [(dialect, name) for dialect in DIALECTS for name in dialect.fields]


def example(kind: Any, neutral: tuple[Any, ...] = ()) -> Any:
    """A value of an annotation that asks for something."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return next(each for each in args if each not in neutral)
    if origin in (typing.Union, types.UnionType):
        return example(next(each for each in args if each is not type(None)), neutral)
    if typing.is_typeddict(kind):
        return {name: example(each) for name, each in hints(kind).items()}
    if origin in (typing.Required, typing.Annotated):
        return example(args[0], neutral)
    plain = {bool: True, int: 3, float: 0.5, str: "x", object: {"a": 1}}
    if kind in plain:
        return plain[kind]
    if origin is dict or "Dict" in str(kind) or "Mapping" in str(kind):
        return {"a": "b"}
    inside = tuple(each for value in neutral if isinstance(value, list) for each in value)
    return [example(args[0], inside)] if args else "x"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("edge"), Limits()) as deployment:
        deployment.region.script = lambda submit: answer("{}")
        yield deployment


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("thinker"), Limits(), thinks=True) as deployment:
        yield deployment


@pytest.mark.parametrize(("dialect", "name"), FIELDS, ids=lambda each: getattr(each, "name", each))
def test_every_field_of_upstreams_clients(
    edge: Deployment, thinker: Deployment, dialect: Dialect, name: str
) -> None:
    verdict = dialect.verdict(name)
    assert verdict is not None, f"a new field of upstream's: {name}"
    if not dialect.path:  # needs a model of another kind: its body is decoded all the same
        assert verdict in ("works", "refused", "named")
        return
    path = edge.run_path.partition("/run/")[0] + dialect.path
    kinds = [each for kind in dialect.upstream if (each := hints(kind).get(name)) is not None]
    given = OF_THINKERS | dialect.works | dialect.least
    value = given.get(name) if verdict == "works" else example(kinds[0], dialect.neutral(name))
    if verdict == "works" and name in OF_THINKERS:
        reply = edge.client.post(path, json=dialect.least | {name: value})
        assert name in reply.headers[HEADER] or name == "reasoning", (
            "of a model that does not think"
        )
        edge = thinker
    reply = edge.client.post(path, json=dialect.least | {name: value})
    if verdict == "refused":
        assert reply.status_code == (405 if name == "lora" else 400), (value, reply.text)
        assert name in reply.text.lower()
        return
    assert reply.status_code == 200, (value, reply.text)
    named = reply.headers.get(HEADER, "").split(", ")
    assert (name in named) == (verdict == "named"), value


def test_the_table_of_fields_is_in_the_documentation() -> None:
    """A new field of an SDK changes it, and so does one that begins to work."""
    text = (ROOT / "docs/api.md").read_text()
    _, _, table = text.partition("| request | works | refused | named |\n")
    rows = [line.split(" | ")[0] for line in table.partition("\n\n")[0].splitlines()]
    assert rows[1:] == [f"| {dialect.name}" for dialect in DIALECTS]
    for package in ("openai", "anthropic", "cloudflare"):
        assert f"`{package}` {version(package)}" in text
    for dialect in DIALECTS:
        found: dict[Verdict, list[str]] = {"works": [], "refused": [], "named": []}
        for name in dialect.fields:
            verdict = dialect.verdict(name)
            assert verdict is not None, (dialect.name, name)
            found[verdict].append(f"`{name}`")
        row = " | ".join(", ".join(names) or "-" for names in found.values())
        assert f"| {dialect.name} | {row} |\n" in text, f"| {dialect.name} | {row} |"


# --- names that nobody knows ---------------------------------------------------------------------


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


def test_values_that_ask_for_nothing_are_taken(edge: Deployment) -> None:
    for body in (
        {"modalities": ["text"], "audio": None, "web_search_options": None, "store": False},
        {"reasoning_effort": "none", "metadata": {}, "user": ""},
    ):
        reply = edge.chat(**body)
        assert (reply.status_code, reply.headers.get(HEADER)) == (200, None), reply.text


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_no_dialect_is_silent_about_others_fields(
    edge: Deployment, thinker: Deployment, dialect: Dialect
) -> None:
    """What servers of open models, and other dialects, have beside them."""
    if not dialect.path:
        return
    path = edge.run_path.partition("/run/")[0] + dialect.path
    for name, value in {
        "chat_template_kwargs": {"enable_thinking": False},
        "image": [1, 2, 3],
        "reasoning_effort": "low",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "cache_control": {"type": "ephemeral"},
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "mcp_servers": [{"type": "url", "url": "https://mcp.example", "name": "m"}],
        "modalities": ["audio"],
        "truncation": "auto",
    }.items():
        served = thinker if name in OF_THINKERS else edge
        reply = served.client.post(path, json=dialect.least | {name: value})
        if reply.status_code == 400:
            assert name in reply.text
        else:
            named = None if dialect.verdict(name) == "works" else name
            assert (reply.status_code, reply.headers.get(HEADER)) == (200, named), reply.text


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
