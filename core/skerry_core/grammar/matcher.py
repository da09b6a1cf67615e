"""Grammars that an output must follow, as masks over the vocabulary: llguidance behind our words.

    Grammar ──compile──▶ CompiledGrammar ──matcher──▶ Matcher: mask, token, mask, token, …

The masks are llguidance's, each bounded by the compiler's `LIMITS`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from llguidance import LLMatcher

from skerry_core.batch import UInt32
from skerry_core.grammar.call_marks import CallMarks
from skerry_core.grammar.closing import AT_START, Closings
from skerry_core.grammar.json_place import JsonPlace
from skerry_core.grammar.lowering import brief
from skerry_core.grammar.spelling import MARK, NOTHING_LEFT, Way
from skerry_core.grammar.values import GrammarEnds, Values
from skerry_core.grammar_error import GrammarError as GrammarError

SEARCH_EVERY = 8  # tokens, where no way to an end is known: a search that finds none is long
UNKNOWN_MARGIN = 64  # tokens that a place without a known way must have left


class CompiledGrammar:
    """An automaton at its start, for any number of sequences."""

    def __init__(
        self,
        matcher: LLMatcher,
        mask_words: int,
        closings: Closings,
        values: Values,
        end: int | None,
        calls: CallMarks | None,
        ends: GrammarEnds | None,
    ) -> None:
        self._matcher = matcher
        self.mask_words = mask_words  # u32 of a mask
        self.closings = closings
        self.values = values
        self.end = end  # a token that ends the text
        self.calls = calls
        if ends is None:
            self.way = closings.way(matcher, values, JsonPlace(), AT_START)  # from the start
            self.call_way = None if calls is None else self._way_of_call(calls)
        else:
            self.way = None if ends.way is None else Way(*ends.way)
            self.call_way = None if ends.call_way is None else Way(*ends.call_way)
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

    @property
    def ends(self) -> GrammarEnds:
        """Return what compiling it once more need not find again."""
        way, call_way = self.way, self.call_way
        return GrammarEnds(
            self.values.texts,
            None if way is None else way.parts,
            None if call_way is None else call_way.parts,
        )

    def _way_of_call(self, calls: CallMarks) -> Way | None:
        """Return the way from the first word of a mark to the end of the shortest call."""
        matcher, place, spelling = self._matcher.deep_copy(), JsonPlace(), self.closings.spelling
        place.take(calls.text + calls.rest)
        ids = [calls.token] if calls.token is not None else spelling.ids(calls.text + calls.rest)
        if not ids or not matcher.consume_tokens(ids):
            return None
        way = self.closings.way(matcher, self.values, place, AT_START)
        return None if way is None else spelling.way(calls.rest, way)

    def _start(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self)


class Matcher:
    """A sequence's place in its grammar. Not for two threads at once.

    A function of the grammar and of all its tokens, so it is the same after a preemption, and on
    another node that is given them. `choose` also depends on how many tokens are left, and on the
    ways that were known at each token, not on the place in the grammar alone: who goes on from a
    place has to `advance` through the same tokens.
    """

    __slots__ = (
        *("_grammar", "_mark_left", "_matcher", "_place", "_tail", "_way"),
        *("has_withheld_call", "is_closable", "looks_ahead", "mask", "num_tokens", "withheld"),
    )

    def __init__(self, matcher: LLMatcher, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._way = grammar.way  # from here to an end; None where none is known
        self.looks_ahead = grammar.way is not None  # `choose` looks for the end, which takes time
        # Whether `max_tokens` can lead to a whole output, whatever has begun.
        is_call_closable = grammar.calls is None or grammar.call_way is not None
        self.is_closable = self.looks_ahead and is_call_closable
        self._place = JsonPlace()
        # Of a text in which a call may begin; None elsewhere.
        self._tail = None if grammar.calls is None else b""
        self._mark_left = b""  # of a mark whose first word is there: as yet it is text or a mark
        self.withheld: UInt32 | None = None  # bits that `mask` lacks since no call fits any more
        self.has_withheld_call = False  # one that the model would have made
        self.mask: UInt32 | None = None  # u32[ceil(V / 32)]; bit set: may come next; None: stale
        self.num_tokens = 0  # taken so far

    @property
    def is_finished(self) -> bool:
        """Return whether no text can follow: the output is whole."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allows(self, token_id: int) -> bool:
        """Return whether a token may come next, by the mask."""
        return self.mask is not None and bool(self.mask[token_id >> 5] >> (token_id & 31) & 1)

    def advance(self, token_id: int) -> None:
        """Take the next token; the mask is stale until `fill`. Raises GrammarError."""
        if not self._matcher.consume_token(token_id):
            raise GrammarError(self._error() or f"token {token_id} does not follow the grammar")
        self.num_tokens += 1
        self.mask = self.withheld = None
        if self.looks_ahead:
            self._follow(token_id)

    def choose(self, token_id: int, left: int) -> int:
        """Take the token that was sampled, or one in its place that the end is not too far from.

        `left` tokens may follow it. Returns the token that was taken. Raises GrammarError.
        """
        way, place, mark_left, was_text = (
            *(self._way, self._place, self._mark_left),
            self._tail is not None,
        )
        self.advance(token_id)
        if way is None or was_text or self._tail is not None or self.is_finished:
            return token_id  # a text may end anywhere, and `fill` keeps calls out that do not fit
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
        self._way, self._place, self._mark_left = way, place, mark_left
        self.advance(instead)
        return instead

    def _follow(self, token_id: int) -> None:
        """Find the way from where a token led."""
        closings, values, matcher = self._grammar.closings, self._grammar.values, self._matcher
        text = closings.spelling.texts[token_id]
        before, way = self._place, self._way
        calls = self._grammar.calls
        if calls is not None and (self._tail is not None or self._mark_left):
            self._speak(calls, token_id, text)
            return
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
        if calls is not None and matcher.is_accepting():
            self._tail, self._way = b"", NOTHING_LEFT

    def _speak(self, calls: CallMarks, token_id: int, text: bytes) -> None:
        """Go on in a text, or in a mark that may turn out to be text."""
        rest = text
        if self._tail is not None:
            after = calls.begun(self._tail, token_id)
            if after is None:
                self._tail = calls.tail(self._tail + text)
                return
            rest = after
            self._tail, self._way, self._mark_left = None, self._grammar.call_way, calls.rest
        while not (self._mark_left.startswith(rest) or rest.startswith(self._mark_left)):
            _, mark, again = rest.partition(calls.text)
            if not mark:  # it is text after all
                self._tail, self._way, self._mark_left = calls.tail(rest), NOTHING_LEFT, b""
                return
            rest, self._way, self._mark_left = again, self._grammar.call_way, calls.rest
        said, self._mark_left = self._mark_left[: len(rest)], self._mark_left[len(rest) :]
        if self._way is not None:
            self._way = self._way.rest(len(said))
        before = JsonPlace()
        before.take(calls.text + calls.rest)
        self._place = before.copy()
        self._place.take(rest[len(said) :])
        if self._way is not None and len(rest) > len(said):
            closings, values = self._grammar.closings, self._grammar.values
            more = rest[len(said) :]
            self._way = closings.follow(self._way, self._matcher, values, before, self._place, more)

    def fill(self, left: int | None = None) -> None:
        """Compute the mask, unless it is up to date; leave out what begins a call that does not
        fit into the `left` tokens after the next one. Raises GrammarError at a limit."""
        if self.mask is None:
            self.mask = self._mask()
        calls, way = self._grammar.calls, self._grammar.call_way
        if left is None or calls is None or self._tail is None or self.withheld is not None:
            return
        if left < (UNKNOWN_MARGIN if way is None else way.num_tokens):
            kept = calls.kept(self._tail)
            if kept is not None:
                self.mask, self.withheld = self.mask & kept, self.mask & ~kept

    def _mask(self) -> UInt32:
        mask = np.zeros(self._grammar.mask_words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise GrammarError(self._error())
        return mask

    def _error(self) -> str:
        return brief(self._matcher.get_error())
