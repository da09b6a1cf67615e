"""Results of each task: typed, with the same attributes whichever family the model is of."""

from __future__ import annotations

from typing import Any

import pytest

from skerry import Result
from skerry.tasks import Embeddings, Label, Ranked, Ranking, TextGeneration, ToolCall, Usage, typed

USAGE = Result(prompt_tokens=3, completion_tokens=2, total_tokens=5)
NATIVE = Result(response="Hi", tool_calls=[Result(name="add", arguments=Result(a=1))], usage=USAGE)
CHAT = Result(
    object="chat.completion",
    choices=[
        Result(
            message=Result(
                content="Hi",
                tool_calls=[Result(function=Result(name="add", arguments='{"a": 1}'))],
            )
        )
    ],
    usage=USAGE,
)


@pytest.mark.parametrize("content", [NATIVE, CHAT], ids=["native", "chat"])
def test_text(content: Result) -> None:
    result = typed(content)
    assert isinstance(result, TextGeneration)
    assert result == content
    assert result.response == "Hi"
    [call] = result.tool_calls
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("add", {"a": 1})
    assert isinstance(result.usage, Usage)
    assert result.usage.total_tokens == 5


def test_text_without_calls() -> None:
    assert typed(Result(response="Hi", tool_calls=[])).tool_calls == []
    message = Result(content="Hi")
    bare = Result(object="chat.completion", choices=[Result(message=message)])
    assert typed(bare).tool_calls == []
    assert "response" not in bare


def test_a_call_that_was_cut_is_left_out() -> None:
    calls = [
        Result(function=Result(name="add", arguments='{"a": 1}')),
        Result(function=Result(name="add", arguments='{"a": ')),
    ]
    message = Result(content=None, tool_calls=calls)
    result = typed(Result(object="chat.completion", choices=[Result(message=message)]))
    assert [call.arguments for call in result.tool_calls] == [{"a": 1}]
    assert result.response is None


def test_json_of_a_models_own_is_no_ranking() -> None:
    listed = [Result(id=1, score=2)]
    assert isinstance(typed(Result(response=listed, tool_calls=[])), TextGeneration)
    assert typed(Result(response=listed, tool_calls=[])).response == listed


def test_vectors() -> None:
    result = typed(Result(shape=[1, 2], data=[[1.0, 2.0]], pooling="mean"))
    assert isinstance(result, Embeddings)
    assert result.numpy().tolist() == [[1.0, 2.0]]


def test_ranking_and_labels() -> None:
    ranking = typed(Result(response=[Result(id=1, score=0.9), Result(id=0, score=0)], usage=USAGE))
    assert isinstance(ranking, Ranking)
    assert [(each.id, each.score) for each in ranking.response] == [(1, 0.9), (0, 0)]
    assert all(isinstance(each, Ranked) for each in ranking.response)
    labels = typed([Result(label="A", score=0.1), Result(label="B", score=0.9)])
    assert all(isinstance(each, Label) for each in labels)
    assert labels[1].label == "B"


@pytest.mark.parametrize("content", [Result(), Result(image="aGk="), [], [1], 7, None, "x", b"x"])
def test_what_is_of_no_task_stays_as_it_is(content: Any) -> None:
    assert typed(content) is content
