"""Compiles grammars in a process that may be killed, before they are compiled beside the engine.

A hostile grammar can take minutes and gigabytes to compile. There (`child`) it gets `CPU_SECONDS`
and `MEMORY_BYTES`; only what passes is compiled again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from skerry_core.grammar.call_marks import CallMark
from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import GrammarKind
from skerry_core.grammar.matcher import GrammarError
from skerry_core.grammar.values import GrammarEnds
from skerry_regions.process.confined import ChildUnavailable, Confined
from skerry_regions.wire.output_marks import CallMarkSpec

# Of a grammar: the longest that is allowed, 128 KiB of a schema, takes 0.09, and the longest search
# for an end of its outputs 0.4 on a quiet core; on one that is shared both take more.
CPU_SECONDS = 1.0
MEMORY_BYTES = 128 << 20  # of a grammar, beyond what the tokenizer takes


class TrialResult(msgspec.Struct, frozen=True):
    """What a trial found: the lowered grammar and its price, or why there is none."""

    lowered: str = ""
    memory: int = 0  # bytes that it takes when compiled, roughly
    ends: GrammarEnds | None = None  # that were found there, away from the engine's GIL
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """What grammars are compiled for."""

    tokenizer: Path  # tokenizer.json
    size: int  # of the logits
    stop_token_ids: tuple[int, ...]

    def compiler(self) -> GrammarCompiler:
        """Build one. Raises GrammarError when llguidance does not know the tokenizer."""
        return GrammarCompiler(
            self.tokenizer, vocab_size=self.size, stop_token_ids=self.stop_token_ids
        )


class Trial:
    """The parent's end. One call at a time; the process starts with the first, and stays."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._child = Confined(
            "skerry_regions.node.grammar.child",
            str(vocabulary.tokenizer),
            str(vocabulary.size),
            *map(str, vocabulary.stop_token_ids),
        )

    def run(self, kind: GrammarKind, source: str, calls: CallMark | None = None) -> TrialResult:
        """Compile a grammar in the child, with what begins calls in it. Blocks.

        Raises `Exhausted` for one that takes too much, GrammarError when there can be no child.
        """
        mark = None
        if calls is not None:
            mark = CallMarkSpec(
                text=calls.text, rest=calls.rest, token=calls.token, is_first=calls.is_first
            )
        try:
            answer = self._child.ask(msgspec.msgpack.encode((kind, source, mark)))
        except ChildUnavailable as error:
            raise GrammarError(str(error)) from None
        return msgspec.msgpack.decode(answer, type=TrialResult)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._child.close()
