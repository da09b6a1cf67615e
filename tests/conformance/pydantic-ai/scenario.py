"""pydantic-ai: agents over chat completions, responses and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from anthropic import AsyncAnthropic
from checks import Checks, deployed
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

PLATFORM = deployed()
SCHEMAS = ModelProfile(supports_json_schema_output=True)  # as pydantic-ai knows of models by name


def openai(token: str = PLATFORM.token) -> OpenAIProvider:
    return OpenAIProvider(base_url=PLATFORM.openai, api_key=token)


def anthropic() -> AnthropicProvider:
    client = AsyncAnthropic(base_url=PLATFORM.ai, api_key=PLATFORM.token, max_retries=0)
    return AnthropicProvider(anthropic_client=client)


def messages() -> AnthropicModel:
    return AnthropicModel(PLATFORM.chat_model, provider=anthropic(), profile=SCHEMAS)


MODELS: dict[str, Callable[[], Any]] = {  # whose connections are of one event loop each
    "chat": lambda: OpenAIChatModel(PLATFORM.chat_model, provider=openai()),
    "responses": lambda: OpenAIResponsesModel(PLATFORM.chat_model, provider=openai()),
    "messages": messages,
}
SKY = "What colour is the sky?"
SHORT: Any = {"max_tokens": 24, "temperature": 0}
LONG: Any = {"max_tokens": 300, "temperature": 0}

check = Checks("pydantic-ai-slim")


class Pet(BaseModel):
    name: str
    kind: Literal["cat", "dog"]
    age: int
    colour: str


@check
async def dialects_agree() -> None:
    outputs = {}
    for name, make in MODELS.items():
        result = await Agent(make(), system_prompt="You are terse.").run(SKY, model_settings=SHORT)
        outputs[name] = (result.output, result.usage.input_tokens, result.usage.output_tokens)
    assert outputs["chat"] == outputs["responses"] == outputs["messages"], outputs
    assert outputs["chat"][0]
    assert outputs["chat"][2] <= 24


for name, make in MODELS.items():

    async def streamed_is_whole(make: Callable[[], Any] = make) -> None:
        agent = Agent(make())
        whole = await agent.run(SKY, model_settings=SHORT)
        async with agent.run_stream(SKY, model_settings=SHORT) as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        assert "".join(pieces) == whole.output
        assert len(pieces) > 3
        assert stream.usage.output_tokens == whole.usage.output_tokens

    async def an_object_by_schema(make: Callable[[], Any] = make) -> None:
        agent = Agent(make(), output_type=NativeOutput(Pet), retries=0)
        result = await agent.run("Describe a pet.", model_settings=LONG)
        assert isinstance(result.output, Pet)

    async def an_object_by_a_tool(make: Callable[[], Any] = make) -> None:
        agent = Agent(make(), output_type=ToolOutput(Pet), retries=0)
        result = await agent.run("Describe a pet.", model_settings=LONG)
        assert isinstance(result.output, Pet)
        async with agent.run_stream("Describe a pet.", model_settings=LONG) as stream:
            assert await stream.get_output() == result.output

    async def a_tool_is_run(make: Callable[[], Any] = make) -> None:
        ran: list[tuple[int, int]] = []

        def add(a: int, b: int) -> int:
            """Add two integers."""
            ran.append((a, b))
            return a + b

        agent = Agent(make(), tools=[add], output_type=ToolOutput(Pet), retries=0)
        settings = LONG | {"parallel_tool_calls": False}
        async with agent.iter("What is 2 plus 3?", model_settings=settings) as run:
            steps = 0
            async for _ in run:
                steps += 1
                if ran or run.result is not None or steps == 8:
                    break
        assert ran or run.result is not None, "it neither ran the tool nor ended"

    for each in (streamed_is_whole, an_object_by_schema, an_object_by_a_tool, a_tool_is_run):
        each.__name__ += f"_{name}"
        check(each)


@check
async def errors_have_their_status() -> None:
    for model, status in (
        (OpenAIChatModel(PLATFORM.chat_model, provider=openai("wrong")), 401),
        (OpenAIChatModel("@cf/none/none", provider=openai()), 400),
        (AnthropicModel("@cf/none/none", provider=anthropic()), 400),
    ):
        try:
            await Agent(model).run(SKY)
        except ModelHTTPError as error:
            assert error.status_code == status, error
        else:
            raise AssertionError("no error")


check.close()
