"""Anthropic's SDK for Python: messages, structured output, tools, streams, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import anthropic
from checks import Checks, deployed
from pydantic import BaseModel

PLATFORM = deployed()
MODEL = PLATFORM.chat_model
CLIENT = {"base_url": PLATFORM.ai, "api_key": PLATFORM.token, "max_retries": 0, "timeout": 120}
SKY: list[Any] = [{"role": "user", "content": "What colour is the sky?"}]
GREEDY = {"temperature": 0}  # which the SDK has no parameter for any more
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 24,
    "extra_body": GREEDY,
    "system": "You are terse.",
    "messages": SKY,
}
ADD: Any = {
    "name": "add",
    "description": "Add two integers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
SUM: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 200,
    "extra_body": GREEDY,
    "messages": [{"role": "user", "content": "What is 2 plus 3? Use the tool."}],
    "tools": [ADD],
}

check = Checks("anthropic")
client = anthropic.Anthropic(**CLIENT)


class Pet(BaseModel):
    name: str
    kind: Literal["cat", "dog", "fish"]
    age: int


class Home(BaseModel):
    owner: str
    city: str
    street: str
    rooms: int
    pets: list[Pet]


def text_of(message: Any) -> str:
    [block] = message.content
    assert block.type == "text", message
    return block.text


@check
def text_is_what_the_other_dialect_says() -> None:
    message = client.messages.create(**ASKED)
    turns = [{"role": "system", "content": "You are terse."}, *SKY]
    body = {"model": MODEL, "max_tokens": 24, "temperature": 0, "messages": turns}
    other = PLATFORM.post("/v1/chat/completions", body)
    assert text_of(message) == other["choices"][0]["message"]["content"]
    reason = {"stop": "end_turn", "length": "max_tokens"}[other["choices"][0]["finish_reason"]]
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == (reason, None)
    used = message.usage
    assert used.input_tokens + used.cache_read_input_tokens == other["usage"]["prompt_tokens"]
    assert used.output_tokens == other["usage"]["completion_tokens"]
    counted = client.messages.count_tokens(
        model=MODEL, system=ASKED["system"], messages=ASKED["messages"]
    )
    assert counted.input_tokens == other["usage"]["prompt_tokens"]


@check
def max_tokens_is_the_reason() -> None:
    tale = [{"role": "user", "content": "Write a long story about the sea."}]
    message = client.messages.create(**ASKED | {"max_tokens": 3, "messages": tale})
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


@check
def streamed_is_whole() -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == text_of(whole) == text_of(final)
    assert len(pieces) > 3
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    events = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(events[2:-3]) == {"content_block_delta"}


@check
def stop_sequences_end_it() -> None:
    text = text_of(client.messages.create(**ASKED))
    middle = len(text) // 2
    stop = text[middle : middle + 2]
    message = client.messages.create(**ASKED, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == text[: text.index(stop)]


@check
def an_answer_that_was_begun_goes_on() -> None:
    begun = [*SKY, {"role": "assistant", "content": "The sky is"}]
    text = text_of(client.messages.create(**ASKED | {"messages": begun}))
    assert text
    assert not text.startswith("The sky is")


@check
def parse_gives_an_object() -> None:
    asked: Any = {"model": MODEL, "max_tokens": 400, "extra_body": GREEDY}
    asked["messages"] = [{"role": "user", "content": "Describe a home with one pet."}]
    for message in (
        client.messages.parse(**asked, output_format=Home),
        client.beta.messages.parse(**asked, output_format=Home),
    ):
        assert isinstance(message.parsed_output, Home), message
        assert message.stop_reason == "end_turn"
        written = json.loads(message.content[0].text)
        assert message.parsed_output.model_dump() == written
    with client.messages.stream(**asked, output_format=Home) as stream:
        streamed = stream.get_final_message()
    assert streamed.parsed_output == message.parsed_output
    short = client.messages.create(
        **asked | {"max_tokens": 40},
        output_config={"format": {"type": "json_schema", "schema": Home.model_json_schema()}},
    )
    Home.model_validate_json(text_of(short))
    assert short.usage.output_tokens <= 40


@check
def any_tool_is_called() -> None:
    whole = client.messages.create(**SUM, tool_choice={"type": "any"})
    [block] = whole.content
    assert (whole.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "add")
    assert {name: type(value) for name, value in block.input.items()} == {"a": int, "b": int}
    with client.messages.stream(**SUM, tool_choice={"type": "any"}) as stream:
        written = "".join(event.partial_json for event in stream if event.type == "input_json")
        final = stream.get_final_message()
    assert json.loads(written) == final.content[0].input == block.input
    assert final.stop_reason == "tool_use"
    turns = [
        *SUM["messages"],
        {"role": "assistant", "content": whole.to_dict()["content"]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "5"}],
        },
    ]
    answer = client.messages.create(**SUM | {"messages": turns}, tool_choice={"type": "none"})
    assert text_of(answer)
    assert answer.stop_reason in ("end_turn", "max_tokens")


@check
def a_named_tool_is_called_once() -> None:
    other = {"name": "multiply", "input_schema": ADD["input_schema"]}
    tools = SUM | {"tools": [ADD, other]}
    message = client.messages.create(**tools, tool_choice={"type": "tool", "name": "multiply"})
    assert [block.name for block in message.content] == ["multiply"]


@check
def a_call_that_does_not_fit_is_cut() -> None:
    for limit in (1, 3, 8, 16):
        message = client.messages.create(
            **SUM | {"max_tokens": limit}, tool_choice={"type": "any"}
        )
        assert message.stop_reason == "max_tokens", (limit, message)
        assert "<tool" not in message.model_dump_json()


@check
def the_tool_runner_runs() -> None:
    ran: list[tuple[int, int]] = []

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Add two integers."""
        ran.append((a, b))
        return str(a + b)

    runner = client.beta.messages.tool_runner(
        **SUM | {"tools": [add]}, max_iterations=1, tool_choice={"type": "any"}
    )
    [message] = list(runner)
    block = message.content[0]
    runner.generate_tool_call_response()
    assert (block.input["a"], block.input["b"]) in ran


@check
def what_is_not_here_is_refused_or_named() -> None:
    server = {"type": "url", "url": "https://mcp.example.com", "name": "x"}
    try:
        client.messages.create(**ASKED | {"extra_body": {"mcp_servers": [server]}})
    except anthropic.BadRequestError as error:
        assert "mcp_servers" in str(error)
    else:
        raise AssertionError("mcp_servers is taken")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    raw = client.messages.with_raw_response.create(
        **ASKED | {"max_tokens": 2048, "stop_sequences": ["e"]},
        thinking=thinking,
        metadata={"user_id": "u"},
    )
    assert raw.headers["x-skerry-ignored"] == "thinking"


@check
def errors_have_their_classes() -> None:
    def status_of(call: Any) -> anthropic.APIStatusError:
        try:
            call()
        except anthropic.APIStatusError as error:
            assert error.body["type"] == "error", error.body
            assert error.body["request_id"] == error.response.headers["x-request-id"]
            return error
        raise AssertionError("no error")

    wrong = anthropic.Anthropic(**CLIENT | {"api_key": "wrong"})
    assert isinstance(status_of(lambda: wrong.messages.create(**ASKED)),
                      anthropic.AuthenticationError)
    unknown = status_of(lambda: client.messages.create(**ASKED | {"model": "claude-none"}))
    assert unknown.body["error"]["type"] == "not_found_error"
    empty = status_of(lambda: client.messages.create(**ASKED | {"messages": []}))
    assert isinstance(empty, anthropic.BadRequestError)
    batch = status_of(lambda: client.messages.batches.retrieve("msgbatch_1"))
    assert batch.body["error"]["type"] == "not_found_error"


@check
def models_are_listed() -> None:
    assert MODEL in {model.id for model in client.models.list()}
    assert client.models.retrieve(MODEL).id == MODEL


@check
async def many_at_once_are_as_alone() -> None:
    def asked(number: int) -> Any:
        turns = [{"role": "user", "content": f"The number {number} is followed by"}]
        return ASKED | {"messages": turns, "max_tokens": 12}

    alone = [text_of(client.messages.create(**asked(number))) for number in range(8)]
    async with anthropic.AsyncAnthropic(**CLIENT) as many:
        answers = await asyncio.gather(
            *(many.messages.create(**asked(number)) for number in range(8))
        )
    assert [text_of(answer) for answer in answers] == alone


check.close()
