"""Grammars of a served model: tried in a process, compiled on a thread, kept within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import cycles
from tests.core.byte_grammars import END, VOCAB, write_byte_tokenizer

from skerry.errors import InvalidInput, Overloaded, RateLimited
from skerry_core.grammar import compiler
from skerry_core.grammar.call_marks import CallMark
from skerry_core.grammar.closing import Closings
from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import lower
from skerry_core.grammar.matcher import CompiledGrammar, GrammarError, Matcher
from skerry_core.grammar.values import GrammarEnds
from skerry_regions.node.grammar import child, grammars
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.grammar.trial import GrammarVocabulary, Trial
from skerry_regions.process import confined
from skerry_regions.process.confined import Exhausted
from skerry_regions.wire.output_marks import CallMarkSpec
from skerry_regions.wire.protocol import GrammarSpec

LETTERS = GrammarSpec(kind="regex", source="[a-z]{3}")
ENDLESS = GrammarSpec(  # a large multiple makes an automaton with as many states
    kind="json_schema",
    source=json.dumps({"type": "integer", "multipleOf": 9999991, "minimum": 0, "maximum": 10**18}),
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> GrammarVocabulary:
    file = write_byte_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json")
    return GrammarVocabulary(file, VOCAB, (END,))


@pytest.fixture(scope="module")
def trial(vocabulary: GrammarVocabulary) -> Iterator[Trial]:
    trial = Trial(vocabulary)
    yield trial
    trial.close()


def test_a_grammar_passes(trial: Trial) -> None:
    result = trial.run(LETTERS.kind, LETTERS.source)
    assert result.refusal is None
    assert "[a-z]{3}" in result.lowered


def test_a_grammar_is_refused(trial: Trial) -> None:
    assert trial.run("regex", "(").refusal


def test_a_hostile_grammar_costs_the_process_and_not_the_next(trial: Trial) -> None:
    with pytest.raises(Exhausted):
        trial.run(ENDLESS.kind, ENDLESS.source)
    assert trial.run(LETTERS.kind, LETTERS.source).refusal is None


def test_calls_are_tried_with_it(vocabulary: GrammarVocabulary) -> None:
    """The way to a call's end is searched for as well, and nobody's else to be ended."""
    mark = CallMarkSpec(text="<", rest="x")
    tried: list[object] = []

    class Noting(GrammarCompiler):
        def compile(
            self, lowered: str, calls: CallMark | None = None, ends: GrammarEnds | None = None
        ) -> CompiledGrammar:
            tried.append(calls)
            return super().compile(lowered, calls, ends)

    noting = Noting(vocabulary.tokenizer, vocab_size=VOCAB, stop_token_ids=(END,))
    assert child._try(noting, "ebnf", 'start: /[^<]*/ ("<x" "y")?', mark).refusal is None
    assert tried == [mark]


def test_a_tokenizer_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    trial = Trial(GrammarVocabulary(file, VOCAB, (END,)))
    with pytest.raises(GrammarError, match="tokenizer"):
        trial.run(LETTERS.kind, LETTERS.source)


def test_a_process_that_says_nothing_is_given_up(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(vocabulary)
    assert trial.run(LETTERS.kind, LETTERS.source).refusal is None
    monkeypatch.setattr(confined, "WALL_SECONDS", 0.0)
    with pytest.raises(Exhausted):
        trial.run(ENDLESS.kind, ENDLESS.source)
    trial.close()


# --- the service ---------------------------------------------------------------------------------


class Asker:
    """`Grammars` for the length of one test."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.grammars = Grammars(vocabulary)

    async def ask(
        self, grammar: GrammarSpec, cache_key: bytes = b"", output_ids: tuple[int, ...] = ()
    ) -> Matcher:
        return await self.grammars.matcher(grammar, cache_key=cache_key, output_ids=output_ids)

    @property
    def kept(self) -> int:
        return self.grammars.num_kept


def test_compiled_once_for_all_who_wait_per_tenant(vocabulary: GrammarVocabulary) -> None:
    async def main() -> None:
        asker = Asker(vocabulary)
        first, second = await asyncio.gather(asker.ask(LETTERS), asker.ask(LETTERS))
        assert asker.kept == 1
        first.advance(ord("x"))
        assert (first.num_tokens, second.num_tokens) == (1, 0)
        await asker.ask(LETTERS, b"another tenant")
        assert asker.kept == 2
        await asker.grammars.close()

    asyncio.run(main())


def test_what_takes_python_is_found_in_the_child(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the engine it held the interpreter's lock: 20 ms for a schema of 3,000 constants."""
    schema = {"anyOf": [{"const": number} for number in range(3000)]}
    grammar = GrammarSpec(kind="json_schema", source=json.dumps(schema))
    mark = CallMarkSpec(text="<", rest="x")
    calls = GrammarSpec(kind="ebnf", source='start: /[^<]*/ ("<x" "y")?', calls=mark)
    alone = vocabulary.compiler()
    both = (grammar, calls)
    expected = [alone.compile(lower(each.kind, each.source), each.calls) for each in both]
    monkeypatch.setattr(compiler, "known_values", None)
    monkeypatch.setattr(Closings, "way", None)

    async def main() -> None:
        asker = Asker(vocabulary)
        for each, wanted in zip(both, expected, strict=True):
            found = await asker.ask(each)
            assert found._grammar.ends == wanted.ends
            assert found.is_closable == wanted.matcher().is_closable
        await asker.grammars.close()

    asyncio.run(main())


def test_a_transcript_is_taken_or_refused(vocabulary: GrammarVocabulary) -> None:
    async def main() -> None:
        asker = Asker(vocabulary)
        matcher = await asker.ask(LETTERS, output_ids=tuple(b"ab"))
        assert matcher.num_tokens == 2
        with pytest.raises(InvalidInput):
            await asker.ask(LETTERS, output_ids=(0,))
        await asker.grammars.close()

    asyncio.run(main())


def test_refusals_are_kept_too(vocabulary: GrammarVocabulary) -> None:
    async def main() -> None:
        asker = Asker(vocabulary)
        for _ in range(2):
            with pytest.raises(InvalidInput, match="too much time or memory"):
                await asker.ask(ENDLESS)
        assert asker.kept == 1
        with cycles.counted() as found:
            for _ in range(3):
                with pytest.raises(RateLimited, match="too much time or memory"):
                    await asker.ask(LETTERS)
        assert found == {}
        await asker.ask(LETTERS, b"another tenant")
        await asker.grammars.close()

    asyncio.run(main())


def test_whoever_is_cancelled_does_not_stop_the_others(vocabulary: GrammarVocabulary) -> None:
    async def main() -> None:
        asker = Asker(vocabulary)
        gone, stays = (asyncio.create_task(asker.ask(LETTERS)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await stays).num_tokens == 0
        await asker.grammars.close()

    asyncio.run(main())


def test_too_many_that_wait(vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(grammars, "MAX_TENANT_WAITING", 1)
        asker = Asker(vocabulary)
        asked = [
            asyncio.create_task(asker.ask(GrammarSpec(kind="regex", source="a" * n)))
            for n in (1, 2, 3)
        ]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, Overloaded) for each in done] == [False, False, True]
        await asker.grammars.close()

    asyncio.run(main())


def test_what_is_kept_is_bounded(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(grammars, "MAX_KEPT", 3)
        asker = Asker(vocabulary)
        for n in range(1, 6):
            await asker.ask(GrammarSpec(kind="regex", source="a" * n))
        assert asker.kept == 3
        monkeypatch.setattr(grammars, "MAX_KEPT_BYTES", 2 * grammars.LEAST_BYTES)
        await asker.ask(GrammarSpec(kind="regex", source="b"))
        assert asker.kept <= 2
        await asker.grammars.close()

    asyncio.run(main())


def test_a_tenant_keeps_what_it_has_whatever_another_asks(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(grammars, "MAX_TENANT_KEPT", 3)
        asker = Asker(vocabulary)
        await asker.ask(LETTERS, b"quiet")
        for n in range(1, 9):
            await asker.ask(GrammarSpec(kind="regex", source="a" * n), b"loud")
        assert asker.kept == 1 + 3
        quiet = asker.grammars._kept[b"quiet"].entries
        assert (b"quiet", LETTERS.kind, LETTERS.source, None) in quiet
        await asker.grammars.close()

    asyncio.run(main())
