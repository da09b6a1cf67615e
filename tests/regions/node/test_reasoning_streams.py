"""Reasoning ended at its limit: in process, over connections, split, past a node's death."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.byte_grammars import END, text, write_byte_tokenizer
from tests.core.talker import Talker
from tests.regions.toy_nodes import (
    PROMPT,
    SAMPLINGS,
    VOCABULARY,
    RunningNode,
    after_tokens,
    linked_platform,
    read,
    submit,
)

from skerry.errors import InvalidInput
from skerry_core.reasoning_budget import ReasoningBudget
from skerry_regions.node import preparation
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.grammar.trial import GrammarVocabulary
from skerry_regions.node.preparation import AT_ONCE_TOKENS
from skerry_regions.region.local import LocalRegion
from skerry_regions.wire.output_marks import ReasoningLimitSpec
from skerry_regions.wire.protocol import Sampling, Tokens

pytestmark = pytest.mark.anyio

WRITTEN = (250, 251, 252)


@pytest.mark.parametrize("size", [0, 1, 12])
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_the_same_wherever_it_runs_and_goes_on(
    tmp_path: Path, sampling: str, size: int
) -> None:
    limit = ReasoningLimitSpec(max_tokens=size, end_ids=WRITTEN)
    asked = submit(sampling=SAMPLINGS[sampling], reasoning=limit)
    async with linked_platform(*(RunningNode(f"n{i}", tmp_path) for i in range(2))) as p:
        free = await read(await p.region.generate(submit(sampling=SAMPLINGS[sampling])))
        want = await read(await p.region.generate(asked))
        assert want[0][: size + 3] == [*free[0][:size], *WRITTEN]
        assert len(want[0]) == 40

        p.is_split = True
        assert (await read(await p.region.generate(asked)))[:2] == want[:2]
        p.is_split = False

        local: list[int] = []
        async for event in await LocalRegion(p.nodes[0].node).generate(asked):
            local += event.token_ids if isinstance(event, Tokens) else []
        assert local == want[0]

        for count in sorted({1, max(1, size - 1), size + 1, size + 2, size + 4}):
            first = p.nodes[0]
            first.gate.hold_after(count)
            stream = await p.region.generate(asked)
            ids, logprobs = await after_tokens(stream, count)
            for link in list(first.server.links):
                link.hand_back()
            first.gate.open.set()
            assert (await read(stream, ids, logprobs))[:2] == want[:2], count


async def test_a_long_transcript_is_read_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ReasoningLimitSpec(max_tokens=AT_ONCE_TOKENS + 20, end_ids=WRITTEN)
    asked = submit(sampling=Sampling(max_tokens=AT_ONCE_TOKENS + 40), reasoning=limit)
    readers: list[str] = []

    def noted(limit: ReasoningLimitSpec, *told: Any) -> ReasoningBudget:
        readers.append(threading.current_thread().name)
        return ReasoningBudget(limit, *told)

    monkeypatch.setattr(preparation, "ReasoningBudget", noted)
    async with linked_platform(RunningNode("n", tmp_path)) as p:
        whole, *_ = await read(await p.region.generate(asked))
        assert whole[AT_ONCE_TOKENS + 20 :][:3] == list(WRITTEN)
        for known in (AT_ONCE_TOKENS, AT_ONCE_TOKENS + 1):
            gone_on = replace(asked, output_ids=whole[:known])
            rest, *_ = await read(await p.region.generate(gone_on), whole[:known])
            assert rest == whole
    assert readers[:2] == [threading.main_thread().name] * 2
    assert readers[2] != threading.main_thread().name


def talker(**fields: object) -> Talker:
    model = Talker(**fields)  # type: ignore[arg-type]
    model.words, model.turn, model.end = b"<t>A long thought.", PROMPT[-4:], END
    return model


async def test_marks_that_are_texts_need_a_vocabulary(tmp_path: Path) -> None:
    file = write_byte_tokenizer(tmp_path / "tokenizer.json")
    grammars = Grammars(GrammarVocabulary(file, VOCABULARY, (END,)))
    limit = ReasoningLimitSpec(
        max_tokens=6, end_ids=tuple(b"</t>"), begins=("<t>",), ends=("</t>",)
    )
    asked = submit(sampling=Sampling(max_tokens=40, stop_token_ids=(END,)), reasoning=limit)
    knowing = RunningNode("knowing", tmp_path, grammars=grammars, make_runner=talker)
    ignorant = RunningNode("ignorant", tmp_path, make_runner=talker)
    async with linked_platform(knowing, ignorant) as p:
        whole = await read(await p.region.generate(asked))
        assert (text(whole[0]), whole[2].finish_reason) == ("<t>A long</t>", "stop")
        p.links.reverse()
        p.nodes.reverse()
        with pytest.raises(InvalidInput, match="no marks that are texts"):
            await read(await p.region.generate(asked))
