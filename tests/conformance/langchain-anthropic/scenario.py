"""langchain-anthropic: chat, streams, tools and structured output over Anthropic's dialect."""

from __future__ import annotations

from typing import Any, Literal

from checks import Checks, deployed
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

PLATFORM = deployed()
SKY = [SystemMessage("You are terse."), HumanMessage("What colour is the sky?")]

check = Checks("langchain-anthropic")


def model(**fields: Any) -> ChatAnthropic:
    defaults: dict[str, Any] = {
        "model": PLATFORM.chat_model,
        "base_url": PLATFORM.ai,
        "api_key": PLATFORM.token,
        "max_tokens": 24,
        "temperature": 0,
        "max_retries": 0,
        "timeout": 120,
    }
    return ChatAnthropic(**defaults | fields)


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Pet(BaseModel):
    """A pet."""

    name: str = Field(description="what it is called")
    kind: Literal["cat", "dog"]
    age: int
    colour: str
    owner: str


@check
def streamed_is_whole() -> None:
    whole = model().invoke(SKY)
    chunks = list(model().stream(SKY))
    assert isinstance(whole.content, str)
    assert "".join(str(chunk.text) for chunk in chunks) == whole.content != ""
    assert len(chunks) > 3
    used = whole.usage_metadata
    assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"]
    assert 0 < used["output_tokens"] <= 24
    reason = whole.response_metadata["stop_reason"]
    assert reason == ("max_tokens" if used["output_tokens"] == 24 else "end_turn")
    total = sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata)
    assert total == used["output_tokens"]


@check
def a_tool_is_called() -> None:
    bound = model(max_tokens=200).bind_tools([add], tool_choice="any")
    question = HumanMessage("What is 2 plus 3? Use the tool.")
    answer = bound.invoke([question])
    [call] = answer.tool_calls
    assert (call["name"], set(call["args"])) == ("add", {"a", "b"})
    assert all(type(value) is int for value in call["args"].values())
    assert answer.response_metadata["stop_reason"] == "tool_use"
    whole: Any = None
    for chunk in bound.stream([question]):
        whole = chunk if whole is None else whole + chunk
    assert [each["args"] for each in whole.tool_calls] == [call["args"]]
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    assert model().invoke([question, answer, result]).content


@check
def a_failed_tool_is_told() -> None:
    call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "toolu_1"}
    failed = ToolMessage("out of order", tool_call_id="toolu_1", status="error")
    turns = [HumanMessage("Add 1 and 2."), AIMessage("", tool_calls=[call]), failed]
    assert model().invoke(turns).content


for method in ("json_schema", "function_calling"):

    def structured(method: str = method) -> None:
        bound = model(max_tokens=300).with_structured_output(Pet, method=method, include_raw=True)
        answer = bound.invoke("Describe a pet.")
        assert answer["parsing_error"] is None, answer
        assert isinstance(answer["parsed"], Pet)

    structured.__name__ = f"structured_output_by_{method}"
    check(structured)


@check
async def batches_and_async_streams() -> None:
    asked = [[HumanMessage(f"The number {number} is followed by")] for number in range(6)]
    many = await model().abatch(asked)
    alone = [model().invoke(each).content for each in asked]
    assert [each.content for each in many] == alone
    assert len([chunk async for chunk in model().astream(SKY)]) > 3


@check
def tokens_are_counted() -> None:
    used = model().invoke(SKY).usage_metadata
    assert model().get_num_tokens_from_messages(SKY) == used["input_tokens"]


check.close()
