"""Compiles what outputs must look like for one vocabulary: llguidance behind our words.

Compiling may take a second and much memory for a hostile grammar: callers do it first in a process
that can be killed. Every mask is bounded by `LIMITS`, about 10 ms at worst and 50 µs as a rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from skerry_core.grammar.call_marks import CallMark, CallMarks
from skerry_core.grammar.closing import Closings
from skerry_core.grammar.known_values import known_values
from skerry_core.grammar.lowering import brief
from skerry_core.grammar.matcher import CompiledGrammar
from skerry_core.grammar.values import GrammarEnds, Values, value_texts
from skerry_core.grammar_error import GrammarError

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # of a compilation
    max_grammar_size=200_000,  # symbols
    step_lexer_fuel=100_000,  # of a mask: about 14,000 per millisecond
    step_max_items=25_000,  # of a mask: about 20,000 per millisecond
    max_lexer_states=20_000,  # of a sequence: 1 to 2 KiB each
    verbose_errors=False,  # they would log other people's schemas
)

MAX_MARKS = 16  # of calls, in one vocabulary


class GrammarCompiler:
    """Compiles grammars for one vocabulary. From any thread; the work is done without the GIL."""

    def __init__(self, tokenizer: Path, *, vocab_size: int, stop_token_ids: Iterable[int]) -> None:
        """`tokenizer` is a `tokenizer.json`; `vocab_size` is that of the logits. Half a second.

        Raises GrammarError when the tokenizer is of a kind that llguidance does not know.
        """
        stops = sorted(stop_token_ids)
        try:
            self.tokenizer = LLTokenizer(
                str(tokenizer), n_vocab=vocab_size, eos_token=stops or None, slices=[]
            )
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"no grammars with this tokenizer: {brief(str(error))}") from None
        self._mask_words = -(-vocab_size // 32)
        self._end = stops[0] if stops else None
        self._closings = Closings(self.tokenizer, self._end)
        self._known_marks: dict[tuple[str, int | None, bool], CallMarks] = {}

    @property
    def texts(self) -> list[bytes]:
        """Return the bytes of each token; those of a control token are none of any text."""
        return self._closings.spelling.texts

    def compile(
        self, lowered: str, calls: CallMark | None = None, ends: GrammarEnds | None = None
    ) -> CompiledGrammar:
        """Build the automaton of what `lower` made, a text in which `calls` begin what is none.
        `ends` are those that were found of the same before: they take most of the time, and hold
        the GIL. Raises GrammarError."""
        matcher = LLMatcher(self.tokenizer, lowered, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(brief(matcher.get_error()))
        if ends is None:
            texts, is_json = known_values(lowered)
            known = value_texts(texts, is_json=is_json)
        else:
            known = ends.texts
        values = Values(known, self._closings.spelling)
        marks = self._marks(calls)
        return CompiledGrammar(
            matcher, self._mask_words, self._closings, values, self._end, marks, ends
        )

    def _marks(self, calls: CallMark | None) -> CallMarks | None:
        if calls is None:
            return None
        key = calls.text, calls.token, calls.is_first
        if key not in self._known_marks:
            if len(self._known_marks) == MAX_MARKS:
                self._known_marks.clear()
            spelling = self._closings.spelling
            self._known_marks[key] = CallMarks(calls, spelling, self._mask_words)
        return self._known_marks[key]
