"""Grammars that an output must follow, as masks over the vocabulary: llguidance behind our words.

    Grammar ──compile──▶ CompiledGrammar ──matcher──▶ Matcher: mask, token, mask, token, …

Compiling may take a second and much memory for a hostile grammar: callers do it first in a process
that can be killed. Every mask is bounded by `LIMITS`, about 10 ms at worst and 50 µs as a rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from skerry_core.batch import UInt32
from skerry_core.grammar.closing import Closings, Values
from skerry_core.grammar.json_place import JsonPlace
from skerry_core.grammar.known_values import known_values
from skerry_core.grammar.spelling import MARK, NOTHING_LEFT
from skerry_core.grammar_error import GrammarError as GrammarError

GrammarKind = Literal["json_schema", "regex", "ebnf"]

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # of a compilation
    max_grammar_size=200_000,  # symbols
    step_lexer_fuel=100_000,  # of a mask: about 14,000 per millisecond
    step_max_items=25_000,  # of a mask: about 20,000 per millisecond
    max_lexer_states=20_000,  # of a sequence: 1 to 2 KiB each
    verbose_errors=False,  # they would log other people's schemas
)

MAX_ERROR = 500  # characters of llguidance's message
SEARCH_EVERY = 8  # tokens, where no way to an end is known: a search that finds none is long
UNKNOWN_MARGIN = 64  # tokens that a place without a known way must have left
MAX_SHOWN = 200  # characters of a regular expression in one

_PARSE_ERROR = re.compile(r"regex parse error:\n    ([^\n]*)\n[^\0]*?\nerror: ([^\n]*)")
_LOOKS_AROUND = re.compile(r"lookarounds not supported yet; (\w+) in regex /([^\n]*)/")


class Grammar(Protocol):
    """What an output must look like."""

    @property
    def kind(self) -> GrammarKind: ...

    @property
    def source(self) -> str:
        """Compile a JSON schema, a regular expression (Rust's syntax, anchored at both ends), or
        EBNF in Lark's or in GBNF's notation."""
        ...


def lower(kind: GrammarKind, source: str) -> str:
    """Return a `Grammar` in llguidance's own form. Raises GrammarError for an ill-formed one."""
    try:
        match kind:
            case "json_schema":
                # One way to write JSON, as `json.dumps` does: a model cannot dither in white space.
                return LLMatcher.grammar_from_json_schema(
                    source,
                    overrides={
                        "whitespace_flexible": False,
                        "item_separator": ", ",
                        "key_separator": ": ",
                    },
                )
            case "regex":
                return LLMatcher.grammar_from_regex(source)
            case "ebnf":
                return LLMatcher.grammar_from_lark(any_to_lark(source))
    except Exception as error:  # the converter from GBNF raises whatever it runs into
        raise GrammarError(_brief(str(error))) from None


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
            raise GrammarError(f"no grammars with this tokenizer: {_brief(str(error))}") from None
        self._mask_words = -(-vocab_size // 32)
        self._end = stops[0] if stops else None
        self._closings = Closings(self.tokenizer, self._end)

    def compile(self, lowered: str) -> CompiledGrammar:
        """Build the automaton of what `lower` made. Raises GrammarError."""
        matcher = LLMatcher(self.tokenizer, lowered, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(_brief(matcher.get_error()))
        texts, is_json = known_values(lowered)
        values = Values(texts, self._closings.spelling, is_json=is_json)
        return CompiledGrammar(matcher, self._mask_words, self._closings, values, self._end)


class CompiledGrammar:
    """An automaton at its start, for any number of sequences."""

    def __init__(
        self,
        matcher: LLMatcher,
        mask_words: int,
        closings: Closings,
        values: Values,
        end: int | None,
    ) -> None:
        self._matcher = matcher
        self.mask_words = mask_words  # u32 of a mask
        self.closings = closings
        self.values = values
        self.end = end  # a token that ends the text
        self.way = closings.way(matcher, values)  # from the start to an end
        first = self._start()
        first.fill()
        self._first_mask = first.mask

    def matcher(self, output_ids: Iterable[int] = ()) -> Matcher:
        """Return a place in the grammar after the tokens of an earlier attempt, its mask computed.

        Raises GrammarError when these tokens do not follow the grammar.
        """
        matcher = self._start()
        matcher.mask = self._first_mask
        for token_id in output_ids:
            matcher.advance(token_id)
        matcher.fill()
        return matcher

    def _start(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self)


class Matcher:
    """A sequence's place in its grammar. Not for two threads at once.

    A function of the grammar and of the tokens alone, so it is the same after a preemption, and on
    another node.
    """

    __slots__ = ("_grammar", "_matcher", "_place", "_way", "mask", "num_tokens")

    def __init__(self, matcher: LLMatcher, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._way = grammar.way  # from here to an end; None where none is known
        self._place = JsonPlace()
        self.mask: UInt32 | None = None  # u32[ceil(V / 32)]; bit set: may come next; None: stale
        self.num_tokens = 0  # taken so far

    @property
    def is_finished(self) -> bool:
        """Return whether no text can follow: the output is whole."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def is_accepting(self) -> bool:
        """Return whether the output is whole as it stands; more may follow."""
        return self._matcher.is_accepting()

    @property
    def looks_ahead(self) -> bool:
        """Return whether `choose` looks for the end, which takes time."""
        return self._grammar.way is not None

    def advance(self, token_id: int) -> None:
        """Take the next token; the mask is stale until `fill`. Raises GrammarError."""
        if not self._matcher.consume_token(token_id):
            raise GrammarError(self._error() or f"token {token_id} does not follow the grammar")
        self.num_tokens += 1
        self.mask = None
        if self.looks_ahead:
            self._follow(token_id)

    def choose(self, token_id: int, left: int) -> int:
        """Take the token that was sampled, or one in its place that the end is not too far from.

        `left` tokens may follow it. Returns the token that was taken. Raises GrammarError.
        """
        way, place = self._way, self._place
        self.advance(token_id)
        if way is None or self.is_finished:
            return token_id
        if self._way is not None:
            is_safe = self._way.num_tokens <= left
        else:  # an end is farther than any search: leave the model its will while there is room
            is_safe = left > 2 * way.num_tokens + UNKNOWN_MARGIN
        instead = way.head if way.text else self._grammar.end
        if is_safe or instead in (None, token_id) or way.num_tokens > left + 1:
            return token_id
        if not self._matcher.rollback(1):
            return token_id
        self.num_tokens -= 1
        self._way, self._place = way, place
        self.advance(instead)
        return instead

    def _follow(self, token_id: int) -> None:
        """Find the way from where a token led."""
        closings, values, matcher = self._grammar.closings, self._grammar.values, self._matcher
        text = closings.spelling.texts[token_id]
        before, way = self._place, self._way
        if matcher.is_accepting() or text.startswith(MARK):
            self._place = JsonPlace()
        else:
            self._place = before.copy()
            self._place.take(text)
        if matcher.is_stopped():
            self._way = NOTHING_LEFT
        elif way is not None:
            self._way = closings.follow(way, matcher, values, before, self._place, text)
        elif self.num_tokens % SEARCH_EVERY == 0:
            self._way = closings.way(matcher, values, self._place)

    def fill(self) -> None:
        """Compute the mask, unless it is up to date. Raises GrammarError at a limit."""
        if self.mask is not None:
            return
        mask = np.zeros(self._grammar.mask_words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise GrammarError(self._error())
        self.mask = mask

    def _error(self) -> str:
        return _brief(self._matcher.get_error())


def _brief(message: str) -> str:
    """Return the first line, since what follows in llguidance's messages is its state; of a regular
    expression, which is refused in several, a sentence."""
    if found := _PARSE_ERROR.search(message):
        return f"the regex /{found[1][:MAX_SHOWN]}/ cannot be used: {found[2][:MAX_ERROR]}"
    if found := _LOOKS_AROUND.search(message):
        what = "word boundaries" if found[1].startswith("Word") else "anchors inside of it"
        return f"the regex /{found[2][:MAX_SHOWN]}/ cannot be used: {what} are not supported"
    first = message.strip().partition("\n")[0]
    return first[:MAX_ERROR]
