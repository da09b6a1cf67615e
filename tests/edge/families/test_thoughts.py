"""Thoughts on their way through an edge: out of the answer, before a format, counted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.core.byte_grammars import compiled
from tests.edge import support
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment

from skerry_edge.families.deltas import Delta, ReasoningDelta, TextDelta
from skerry_edge.families.family import ReaderSpec
from skerry_edge.families.reader import Reader
from skerry_edge.families.recognition import family_of
from skerry_edge.generation.generation import Generation
from skerry_edge.text.transcript import Transcript
from skerry_regions.wire.protocol import Done, PhaseUsage, Tokens

THINKER = family_of(
    '{{ tools }}<tool_call>{{ m.tool_calls }}"arguments"<think></think>{{ enable_thinking }}'
)
THOUGHT = "<think>\nA {brace}?\n</think>\n\n"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(autouse=True)
def _thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.ByteText, "family", THINKER)


@pytest.mark.parametrize("per_step", [1, 4, 1000])
def test_a_thought_is_no_part_of_the_answer(edge: Deployment, per_step: int) -> None:
    edge.region.script = lambda submit: answer(THOUGHT + "So.", per_step=per_step)
    assert edge.chat().json()["choices"][0]["message"]["content"] == "So."
    assert edge.run(prompt="hi").json()["result"]["response"] == "So."
    streamed = edge.chat(stream=True).text
    assert "think" not in streamed
    base = edge.chat_path.removesuffix("/chat/completions")
    asked = {"model": support.MODEL, "max_tokens": 99}
    for path, body in {
        "messages": {"messages": [{"role": "user", "content": "hi"}]},
        "responses": {"input": "hi"},
    }.items():
        fields = asked | body if path == "messages" else {"model": support.MODEL} | body
        said = edge.client.post(f"{base}/{path}", json=fields)
        assert said.status_code == 200, said.text
        assert "<think>" not in said.text
        assert "So." in said.text


def test_what_follows_a_bare_text_is_not_read(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(THOUGHT + "So.")
    path = edge.chat_path.removesuffix("/chat/completions") + "/completions"
    reply = edge.client.post(path, json={"model": support.MODEL, "prompt": "hi", "max_tokens": 99})
    assert reply.json()["choices"][0]["text"] == THOUGHT + "So."
    bare = edge.run(prompt="hi", raw=True).json()["result"]["response"]
    assert bare == THOUGHT + "So."


def test_a_format_is_held_behind_the_thought(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(THOUGHT + '{"a": 1}')
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    reply = edge.chat(response_format=form).json()["choices"][0]
    assert reply["message"]["content"] == '{"a": 1}'
    [submit] = edge.region.submits
    assert submit.grammar is not None
    automaton = compiled(submit.grammar.kind, submit.grammar.source)
    for whole in (THOUGHT + '{"a": 1}', '{"a": 1}'):
        assert automaton.matcher(whole.encode())._matcher.is_accepting()
    assert not automaton.matcher(THOUGHT.encode())._matcher.is_accepting()


USAGE = PhaseUsage(
    prompt_tokens=1,
    cached_tokens=0,
    output_tokens=1,
    queue_seconds=0,
    prefill_seconds=0,
    decode_seconds=0,
)


class _Stream:
    """A region's stream, by steps of token ids."""

    def __init__(self, *steps: bytes) -> None:
        self._steps = [Tokens(stream=1, index=0, token_ids=list(step)) for step in steps]

    def abort(self) -> None: ...

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Tokens | Done:
        if self._steps:
            return self._steps.pop(0)
        return Done(stream=1, finish_reason="stop", usage=USAGE)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_tokens_of_a_thought_are_counted(size: int) -> None:
    output = (THOUGHT + "So.").encode()
    stream = _Stream(*(output[at : at + size] for at in range(0, len(output), size)))
    reader = Reader(ReaderSpec(family=THINKER))
    generation = Generation(stream, Transcript(support.ByteText()), (), reader)

    async def deltas() -> list[Delta]:
        async with aclosing(generation.pieces()) as pieces:
            return [delta async for piece in pieces for delta in piece.deltas]

    found = asyncio.run(deltas())
    said = "".join(each.text for each in found if isinstance(each, TextDelta))
    thought = "".join(each.text for each in found if isinstance(each, ReasoningDelta))
    assert (thought, said) == ("A {brace}?", "So.")
    marked = len(THOUGHT.strip()) - len("<think")  # a mark is one when its last letter is there
    assert generation.num_reasoning_tokens == marked
