"""Streams that follow a grammar: in process, over connections, split, and past a node's death."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.byte_grammars import END, text, write_byte_tokenizer
from tests.core.talker import Talker
from tests.regions.toy_nodes import (
    MODEL,
    PROMPT,
    VOCABULARY,
    Platform,
    RunningNode,
    after_tokens,
    linked,
    linked_platform,
    read,
    submit,
    until,
)

from skerry.errors import InvalidInput, Unavailable
from skerry_edge.families.table import TAUGHT
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.tool_grammars import tool_grammar
from skerry_edge.output.tools import toolbox
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.grammar.trial import GrammarVocabulary
from skerry_regions.region.local import LocalRegion
from skerry_regions.wire.client import failed_event
from skerry_regions.wire.link_connection import Sink
from skerry_regions.wire.protocol import Accepted, Done, GrammarSpec, Sampling, Submit, Tokens

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
OBJECT = GrammarSpec(kind="json_schema", source=json.dumps(SCHEMA))
SAMPLING = Sampling(
    temperature=1.2, seed=11, max_tokens=300, stop_token_ids=(END,), logprobs=1, top_k=40
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> GrammarVocabulary:
    file = write_byte_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json")
    return GrammarVocabulary(file, VOCABULARY, (END,))


def structured(grammar: GrammarSpec | None = OBJECT) -> Submit:
    return submit(grammar=grammar, sampling=SAMPLING)


def platform(
    path: Path, vocabulary: GrammarVocabulary, count: int = 2
) -> AbstractAsyncContextManager[Platform]:
    return linked_platform(
        *(RunningNode(f"n{i}", path, grammars=Grammars(vocabulary)) for i in range(count))
    )


async def test_the_same_in_process_over_a_connection_and_split(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    async with platform(tmp_path, vocabulary) as p:
        remote = await read(await p.region.generate(structured()))
        assert remote[2].finish_reason == "stop"
        assert json.loads(text(remote[0])).keys() == {"name", "sizes"}

        p.is_split = True
        split = await read(await p.region.generate(structured()))
        assert split[:2] == remote[:2]

        local: list[int] = []
        async for event in await LocalRegion(p.nodes[0].node).generate(structured()):
            local += event.token_ids if isinstance(event, Tokens) else []
        assert local == remote[0]


async def test_a_sink_that_fails_at_the_acceptance_costs_no_step(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    told: list[object] = []

    def broken(event: object) -> None:
        told.append(event)
        raise OSError("gone")

    async with platform(tmp_path, vocabulary, count=1) as p:
        p.nodes[0].node.submit(structured(), broken)
        await until(lambda: len(told) == 2)
        assert [type(event) for event in told] == [Accepted, Done]
        await read(await p.region.generate(submit()))
        assert p.nodes[0].num_computed == len(PROMPT) + 39


async def test_a_stream_goes_on_where_its_node_died(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    async with platform(tmp_path, vocabulary) as p:
        want = await read(await p.region.generate(structured()))
        for count in (1, 7, len(want[0]) - 1):
            first = p.nodes[0]
            first.gate.hold_after(count)
            stream = await p.region.generate(structured())
            ids, logprobs = await after_tokens(stream, count)
            for link in list(first.server.links):
                link.hand_back()
            first.gate.open.set()
            got = await read(stream, ids, logprobs)
            assert got[:2] == want[:2]
            assert got[2].finish_reason == "stop"


@pytest.mark.parametrize("place", ["in process", "over a connection", "split"])
async def test_a_grammar_that_cannot_be_used_is_refused_at_once(
    tmp_path: Path, vocabulary: GrammarVocabulary, place: str
) -> None:
    wrong = structured(GrammarSpec(kind="regex", source="("))
    async with platform(tmp_path, vocabulary) as p:
        p.is_split = place == "split"
        region = LocalRegion(p.nodes[0].node) if place == "in process" else p.region
        with pytest.raises(InvalidInput, match="regex"):
            await region.generate(wrong)
        if place == "over a connection":  # and the connection is as good as before
            assert (await read(await p.region.generate(structured())))[2].finish_reason == "stop"


async def test_a_schema_without_a_known_way_is_counted_and_refused_where_it_is_strict(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    far = json.dumps({"type": "string", "minLength": 100_000})
    async with platform(tmp_path, vocabulary, count=1) as p:
        unknown = p.nodes[0].node.metrics.closing_unknown
        strict = GrammarSpec(kind="json_schema", source=far, strict=True)
        with pytest.raises(InvalidInput, match="no shortest output of this schema is known"):
            await p.region.generate(structured(strict))
        assert unknown.value(MODEL) == 1
        loose = structured(replace(strict, strict=False))
        loose = replace(loose, sampling=replace(SAMPLING, max_tokens=30))
        taken = await read(await p.region.generate(loose))
        assert (len(taken[0]), taken[2].finish_reason) == (30, "length")
        assert unknown.value(MODEL) == 2
        whole = structured(replace(OBJECT, strict=True))
        assert (await read(await p.region.generate(whole)))[2].finish_reason == "stop"
        assert unknown.value(MODEL) == 2


WORDS = b'Hi <tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def talker(**fields: Any) -> Talker:
    """A model that wants to call a tool, and ends when it may not."""
    model = Talker(**fields)
    model.words = WORDS
    model.turn, model.end = PROMPT[-4:], END
    return model


async def test_a_call_that_no_longer_fits_is_withheld_wherever_the_stream_goes_on(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    box = toolbox(OutputAsked(tools=[{"name": "add"}]))
    assert box is not None
    calls = structured(tool_grammar(TAUGHT, box))
    nodes = [
        RunningNode(f"n{i}", tmp_path, grammars=Grammars(vocabulary), make_runner=talker)
        for i in range(2)
    ]
    async with linked(nodes) as links:
        p = Platform(nodes, links)
        ample = await read(await p.region.generate(calls))
        assert text(ample[0]) == WORDS.decode()
        sampling = replace(SAMPLING, temperature=0.0, max_tokens=len(ample[0]) - 2)
        short = replace(calls, sampling=sampling)
        want = await read(await p.region.generate(short))
        assert text(want[0]).startswith("Hi <")
        assert "<tool" not in text(want[0])
        assert (want[0][-1], want[2].finish_reason) == (END, "length")

        p.is_split = True
        split = await read(await p.region.generate(short))
        assert split[:2] == want[:2]
        assert split[2].finish_reason == "length"

        p.is_split = False
        for count in range(1, len(want[0])):
            first = p.nodes[0]
            first.gate.hold_after(count)
            stream = await p.region.generate(short)
            ids, logprobs = await after_tokens(stream, count)
            for link in list(first.server.links):
                link.hand_back()
            first.gate.open.set()
            got = await read(stream, ids, logprobs)
            assert got[:2] == want[:2]
            assert got[2].finish_reason == "length"


@pytest.mark.parametrize("first", ["prefill", "decode"])
async def test_a_first_token_that_leads_to_the_end_is_reported_of_a_split_stream_too(
    tmp_path: Path, vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """By whichever node reports it first: the decode node has it from the prefill node."""

    async def led(p: Platform, max_tokens: int) -> tuple[str, list[bool]]:
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens, stop_token_ids=(END,))
        far = GrammarSpec(kind="regex", source="a{20}|b{200}")
        events = [e async for e in await p.region.generate(submit(grammar=far, sampling=sampling))]
        tokens = [event for event in events if isinstance(event, Tokens)]
        ids = [id_ for event in tokens for id_ in event.token_ids if id_ != END]
        return text(ids), [event.led for event in tokens]

    class Wordy(Talker):
        words, turn, end = b"b" * 200, PROMPT[-4:], END

    nodes = [
        RunningNode(f"n{i}", tmp_path, grammars=Grammars(vocabulary), make_runner=Wordy)
        for i in range(2)
    ]
    async with linked(nodes) as links:
        p = Platform(nodes, links)
        assert (await led(p, 250))[0] == "b" * 200
        want = await led(p, 100)
        assert (want[0], want[1][0]) == ("a" * 20, True)
        p.is_split = True
        assert not any((await led(p, 250))[1])
        if first == "decode":  # the prefill node is never heard, and its link breaks in the end
            undisturbed = links[-1].submit

            def lagging(submit: Submit, sink: Sink) -> int:
                broken = failed_event(0, Unavailable("the link broke"))
                asyncio.get_running_loop().call_later(0.5, sink, broken)
                return undisturbed(submit, lambda _: None)

            monkeypatch.setattr(links[-1], "submit", lagging)
        assert await led(p, 100) == want


async def test_no_grammars_here(tmp_path: Path) -> None:
    node = RunningNode("plain", tmp_path)
    with pytest.raises(InvalidInput, match="no grammar"):
        await LocalRegion(node.node).generate(structured())
    await node.stop()


async def test_gone_while_its_grammar_is_compiled(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    async with platform(tmp_path, vocabulary, count=1) as p:
        node = p.nodes[0].node
        asking = asyncio.create_task(LocalRegion(node).generate(structured()))
        await asyncio.sleep(0)
        assert node.status()[0].streams == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert node.status()[0].streams == 0

        stream = p.links[0].submit(structured(), lambda _: None)
        p.links[0].abort(stream)
        assert (await read(await p.region.generate(structured())))[2].finish_reason == "stop"


async def test_a_transcript_that_does_not_follow_the_grammar(
    tmp_path: Path, vocabulary: GrammarVocabulary
) -> None:
    async with platform(tmp_path, vocabulary, count=1) as p:
        with pytest.raises(InvalidInput):
            await p.region.generate(submit(grammar=OBJECT, sampling=SAMPLING, output_ids=[1]))


async def test_done_is_the_last_event(tmp_path: Path, vocabulary: GrammarVocabulary) -> None:
    async with platform(tmp_path, vocabulary, count=1) as p:
        events = [e async for e in await LocalRegion(p.nodes[0].node).generate(structured())]
        assert [isinstance(each, Done) for each in events].index(True) == len(events) - 1
