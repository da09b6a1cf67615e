"""The way to a whole output, so that `max_tokens` does not cut one in the middle.

A way is looked for as bytes, and written in tokens last: llguidance accepts every tokenisation of
a text that it accepts. At each place, in this order: what ends the string or the container; a short
value that the schema knows, or the rest of one; what is forced; a search of a few bytes.

A way that is known stays: an output that follows it has its rest, one that grows within a string
or a number is closed by the same, and one that begins something new needs to close only that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from skerry_core.batch import UInt32
from skerry_core.grammar.json_place import JsonPlace
from skerry_core.grammar.spelling import MARK, Spelling, Way
from skerry_core.grammar.values import Values

MAX_BYTES: Final = 65_536  # of a way
MAX_TAILS: Final = 64  # of a known way, where another may join it
MAX_CLOSED: Final = 512  # brackets closed in a row: what takes more is free text, without an end
# What a search may spend: masks, of 10 to 30 µs each, and about so many µs of everything else.
AT_START: Final = (1000, 200_000)
LATER: Final = (100, 10_000)  # between two steps of an engine
MANY_BYTES: Final = 128  # that may come next: a mask of free text, of 450 µs, counts as two
STEP_WORK: Final = 10  # of a place on a way
TOKENS_PER_WORK: Final = 16  # that a text has, or that are taken of it
MAX_SCALAR: Final = 256  # bytes that a search adds to one scalar
WIDTH: Final = 4  # places that it keeps of each length

_FAVOURITES = b'"}],0123456789. -:tfnaebcdghijklmopqrsuvwxyz[{' + bytes(range(65, 91))
_ORDER = np.array([*dict.fromkeys([*_FAVOURITES, *range(256)])])  # all bytes


class Closings:
    """Finds ways for one vocabulary. Its searches may run on several threads."""

    def __init__(self, tokenizer: LLTokenizer, end: int | None) -> None:
        """`end` is a token that ends the text."""
        self.spelling = Spelling(tokenizer)
        self._end = end
        self._size = tokenizer.vocab_size
        ids = np.array(self.spelling.of_byte)[_ORDER]
        self._bytes = _ORDER[ids >= 0]
        self._words = ids[ids >= 0] >> 5
        self._shifts = (ids[ids >= 0] & 31).astype(np.uint32)
        self._marks = [
            token_id
            for token_id, text in enumerate(self.spelling.texts)
            if text.startswith(MARK) and token_id not in (end, tokenizer.eos_token)
        ]

    def way(
        self,
        matcher: LLMatcher,
        values: Values,
        place: JsonPlace,
        limits: tuple[int, int] = LATER,
    ) -> Way | None:
        """Return the way from a place where none is known; None when none was found."""
        return self._search(matcher, values, place, (), _Budget(self._size, *limits))

    def follow(
        self,
        way: Way,
        matcher: LLMatcher,
        values: Values,
        before: JsonPlace,
        after: JsonPlace,
        text: bytes,
    ) -> Way | None:
        """Return the way from where a text led, by the way from where it began."""
        if text and way.text.startswith(text):
            return way.rest(len(text))
        for rest in (way.rest(len(text)), way):
            if self._closes(matcher, rest):
                return rest
        tails = [way.rest(at) for at in before.tails(way.text, MAX_TAILS)]
        return self._search(matcher, values, after, tails, _Budget(self._size, *LATER))

    def _closes(self, matcher: LLMatcher, way: Way) -> bool:
        """Return whether the output is whole after this way."""
        if not way.text:
            return matcher.is_accepting()
        ids = way.ids()
        if self._end is None:
            walker = matcher.deep_copy()
            return matcher.validate_tokens(ids) == len(ids) and (
                walker.consume_tokens(ids) and walker.is_accepting()
            )
        return matcher.validate_tokens([*ids, self._end]) == len(ids) + 1

    def _search(
        self,
        matcher: LLMatcher,
        values: Values,
        place: JsonPlace,
        tails: Sequence[Way],
        budget: _Budget,
    ) -> Way | None:
        walker, place, text, closed = matcher.deep_copy(), place.copy(), bytearray(), 0
        while not walker.is_accepting():
            if not place.in_string and not place.starts_value:
                for tail in tails:
                    if self._closes(walker, tail):
                        return self.spelling.way(bytes(text), tail)
                    budget.work -= 1 + 2 * tail.num_tokens // TOKENS_PER_WORK
            budget.work -= STEP_WORK
            step = self._step(walker, values, place, budget)
            ids = self.spelling.ids(step)
            if not ids or len(text) + len(step) > MAX_BYTES or not walker.consume_tokens(ids):
                return None
            closed = closed + 1 if step in (b"}", b"]") else 0
            if budget.is_used_up or closed > MAX_CLOSED:
                return None
            text += step
            if step.startswith(MARK):
                place = JsonPlace()
            else:
                place.take(step)
        return self.spelling.way(bytes(text))

    def _step(self, walker: LLMatcher, values: Values, place: JsonPlace, budget: _Budget) -> bytes:
        """Return what comes next on a way; nothing when none was found."""
        if place.in_string or not values.is_json:
            known = self._fitting(walker, values.string_ends, values, budget)
        elif place.starts_value:
            known = self._fitting(walker, values.whole, values, budget)
        else:
            known = b""
            for byte in b"}],":  # a number may end here, too
                if walker.validate_tokens([self.spelling.of_byte[byte]]) == 1:
                    return bytes([byte])
            if place.in_scalar:
                known = self._fitting(walker, values.other_ends, values, budget)
        if known:
            return known
        if forced := walker.compute_ff_bytes():
            return place.before_value(forced) if values.is_json else forced
        return self._found(walker, values, place, budget)

    def _fitting(
        self,
        walker: LLMatcher,
        candidates: Iterable[tuple[bytes, list[int]]],
        values: Values,
        budget: _Budget,
    ) -> bytes:
        """Return the first text that may come here and after which what is around it goes on."""
        after = [*values.after, *(() if self._end is None else (self._end,))]
        for text, ids in candidates:
            if budget.fits(walker, ids) and any(
                budget.fits(walker, [*ids, each]) for each in after
            ):
                return text
            if budget.is_used_up:
                break
        return b""

    def _found(self, walker: LLMatcher, values: Values, place: JsonPlace, budget: _Budget) -> bytes:
        """Return the fewest bytes after which a scalar may end, or the only one that may come.

        Breadth first. Two places as far from the start that allow the same tokens count as one, so
        that `[0-9]{4}-[0-9]{2}` costs ten masks a digit and not ten to the power of six.
        """
        ends = b"" if not values.is_json else b'"' if place.in_string else b'"}],'
        allowed = self._allowed(budget, walker)
        if not allowed:
            return self._mark(walker)
        if len(allowed) == 1 or allowed[0] in ends:
            return bytes(allowed[:1])
        layer = [(b"", walker, allowed)]
        for _ in range(MAX_SCALAR):
            ahead: dict[int, tuple[bytes, LLMatcher, list[int]]] = {}
            for prefix, before, choices in layer:
                for byte in _representatives(choices):
                    if len(ahead) == WIDTH or budget.is_used_up:
                        break
                    matcher = before.deep_copy()
                    if not matcher.consume_token(self.spelling.of_byte[byte]):
                        continue
                    text = prefix + bytes([byte])
                    if matcher.is_accepting():
                        return text
                    after = self._allowed(budget, matcher)
                    if after and after[0] in ends:
                        return text
                    if after:
                        ahead.setdefault(hash(budget.mask.tobytes()), (text, matcher, after))
            if not ahead:
                break
            layer = list(ahead.values())
        return b"" if budget.is_used_up else bytes(allowed[:1])

    def _allowed(self, budget: _Budget, matcher: LLMatcher) -> list[int]:
        """Return the bytes that may come next, those that end something first."""
        bits = (budget.mask_of(matcher)[self._words] >> self._shifts) & 1
        allowed = list(map(int, self._bytes[bits.astype(bool)]))
        budget.masks -= len(allowed) >= MANY_BYTES
        return allowed

    def _mark(self, walker: LLMatcher) -> bytes:
        """Return the first control token that may come."""
        for token_id in self._marks:
            if walker.validate_tokens([token_id]) == 1:
                return self.spelling.texts[token_id]
        return b""


class _Budget:
    """What one search may still spend: counted, as what it finds depends on no machine."""

    def __init__(self, vocab_size: int, masks: int, work: int) -> None:
        self.mask = np.zeros(-(-vocab_size // 32), np.uint32)  # the last one
        self.masks = masks
        self.work = work

    @property
    def is_used_up(self) -> bool:
        return self.masks <= 0 or self.work <= 0

    def mask_of(self, matcher: LLMatcher) -> UInt32:
        matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
        self.masks -= 1
        return self.mask

    def fits(self, walker: LLMatcher, ids: list[int]) -> bool:
        """Return whether these tokens may come next."""
        num_taken = walker.validate_tokens(ids)
        self.work -= 1 + (len(ids) + num_taken) // TOKENS_PER_WORK
        return num_taken == len(ids)


def _representatives(choices: list[int]) -> list[int]:
    """Return of digits, of small and of capital letters the first two and the last; all others of
    ASCII, an escape last."""
    chosen: list[int] = []
    for low, high in ((0x30, 0x39), (0x61, 0x7A), (0x41, 0x5A)):
        of_class = [byte for byte in choices if low <= byte <= high]
        chosen += dict.fromkeys([*of_class[:2], *of_class[-1:]])
    others = [byte for byte in choices if byte < 0x7F and not chr(byte).isalnum()]
    return [*chosen, *sorted(others, key=lambda byte: byte == 0x5C)] or choices[:8]
