"""litellm: the same platform through its OpenAI, Anthropic and Cloudflare providers."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one from the network

import litellm
from checks import Checks, deployed
from pydantic import BaseModel

PLATFORM = deployed()
SKY = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "What colour is the sky?"},
]
PROVIDERS: dict[str, dict[str, Any]] = {
    "openai": {"model": f"openai/{PLATFORM.chat_model}", "api_base": PLATFORM.openai},
    "anthropic": {"model": f"anthropic/{PLATFORM.chat_model}", "api_base": PLATFORM.ai},
}
CLOUDFLARE = {"model": f"cloudflare/{PLATFORM.chat_model}", "api_base": f"{PLATFORM.ai}/run/"}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}

check = Checks("litellm")


class Pet(BaseModel):
    name: str
    kind: Literal["cat", "dog"]
    age: int
    colour: str


def ask(provider: dict[str, Any], **fields: Any) -> Any:
    asked = {"messages": SKY, "max_tokens": 24, "temperature": 0, "num_retries": 0, "timeout": 120}
    return litellm.completion(**provider, api_key=PLATFORM.token, **asked | fields)


def text_of(answer: Any) -> str:
    return answer.choices[0].message.content


@check
def providers_agree() -> None:
    answers = {name: ask(provider) for name, provider in PROVIDERS.items()}
    assert text_of(answers["openai"]) == text_of(answers["anthropic"]) != ""
    for answer in answers.values():
        used = answer.usage
        assert used.total_tokens == used.prompt_tokens + used.completion_tokens
        assert answer.choices[0].finish_reason in ("stop", "length")
    assert len({answer.usage.prompt_tokens for answer in answers.values()}) == 1
    assert len({answer.usage.completion_tokens for answer in answers.values()}) == 1


@check
def the_native_dialect_answers() -> None:
    assert text_of(ask(CLOUDFLARE)) == text_of(ask(PROVIDERS["openai"]))


for name, provider in PROVIDERS.items():

    def streamed_is_whole(provider: dict[str, Any] = provider) -> None:
        whole = ask(provider)
        chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == text_of(whole)
        [usage] = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert usage.completion_tokens == whole.usage.completion_tokens
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert [each for each in reasons if each] == [whole.choices[0].finish_reason]

    def a_tool_is_called(provider: dict[str, Any] = provider) -> None:
        turns = [{"role": "user", "content": "What is 2 plus 3? Use the tool."}]
        fields = {"messages": turns, "tools": [ADD], "tool_choice": "required", "max_tokens": 200}
        choice = ask(provider, **fields).choices[0]
        [call] = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "add")
        assert {name: type(value) for name, value in arguments.items()} == {"a": int, "b": int}
        result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
        back = ask(provider, messages=[*turns, choice.message.model_dump(), result])
        assert text_of(back)

    def a_schema_is_held(provider: dict[str, Any] = provider) -> None:
        turns = [{"role": "user", "content": "Describe a pet."}]
        answer = ask(provider, messages=turns, response_format=Pet, max_tokens=300)
        Pet.model_validate_json(text_of(answer))

    for each in (streamed_is_whole, a_tool_is_called, a_schema_is_held):
        each.__name__ += f"_{name}"
        check(each)


@check
def embeddings() -> None:
    answer = litellm.embedding(
        model=f"openai/{PLATFORM.embedding_model}",
        input=["the cat sat", "tax law"],
        api_base=PLATFORM.openai,
        api_key=PLATFORM.token,
    )
    assert [each["index"] for each in answer.data] == [0, 1]
    assert [len(each["embedding"]) for each in answer.data] == [384, 384]
    assert answer.usage.prompt_tokens > 0


@check
def responses() -> None:
    answer = litellm.responses(
        **PROVIDERS["openai"],
        api_key=PLATFORM.token,
        input=[{"role": "user", "content": "What colour is the sky?"}],
        instructions="You are terse.",
        max_output_tokens=24,
        temperature=0,
    )
    [item] = answer.output
    assert item.content[0].text == text_of(ask(PROVIDERS["openai"]))


@check
async def async_streams() -> None:
    provider = PROVIDERS["openai"]
    stream = await litellm.acompletion(
        **provider, api_key=PLATFORM.token, messages=SKY, max_tokens=24, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == text_of(ask(provider))


@check
def errors_have_their_classes() -> None:
    for provider in PROVIDERS.values():
        for fields, kinds in (
            ({"api_key": "wrong"}, litellm.AuthenticationError),
            ({"messages": []}, litellm.BadRequestError),
        ):
            given = {"api_key": PLATFORM.token, "messages": SKY, "max_tokens": 4} | fields
            try:
                litellm.completion(**provider, **given, num_retries=0)
            except kinds:
                continue
            raise AssertionError(f"no error of {provider['model']} for {fields}")


check.close()
