"""The way to the end of a grammar, so that `max_tokens` does not cut an output in the middle.

The way is found by taking, again and again, the tokens that are forced, or else the first of a few
that tend to end things; where it is too long, its text is written in fewer tokens. It need not be
the shortest; it depends on nothing but the place in the grammar. While the tokens that are left are
as many as the way is long, the output can be made whole: a token that would break this is replaced
by the next one of the way.
"""

from __future__ import annotations

from string import ascii_letters

from llguidance import LLMatcher, LLTokenizer

# Bytes that end something in JSON or come between its parts (a real tokenizer forces no space
# after a key: ` "` may follow), those that start something short, letters; then all others.
_ENDS = b'}]", '
_FAVOURITES = _ENDS + b"0123456789{[ntf-:" + ascii_letters.encode()
MAX_TOKENS = 1024  # of a way; where the end is farther, the output may be cut
MAX_TRIES = 4000  # of tokens, on one way: 7 ms at worst, a tenth of that as a rule
MARGIN = 64  # tokens: how much farther than at the start the end may be in the middle
MAX_SPELLED = 32  # bytes of a token that a way is written with


class Closings:
    """Finds ways for one vocabulary. Its searches may run on several threads."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        others = (byte for byte in range(256) if byte not in _FAVOURITES)
        tokens = {
            byte: token_id
            for byte in (*_FAVOURITES, *others)
            if (token_id := _token_of(tokenizer, bytes([byte]))) is not None
        }
        self._letter, self._quote = tokens.get(ord("a")), tokens.get(ord('"'))
        self._candidates = list(tokens.values())
        self._in_text = [
            *([] if self._quote is None else [self._quote]),
            *(each for each in self._candidates if each != self._quote),
        ]
        self._ids: dict[bytes, int] | None = None  # of tokens by their bytes, made when needed
        self._written: tuple[bytes, list[int]] = b"", [0]

    def way(self, matcher: LLMatcher, limit: int = MAX_TOKENS) -> list[int] | None:
        """Return token ids to a whole output, at most `limit`; None when none was found."""
        way = self._found(matcher)
        if way is None or len(way) <= limit:
            return way
        shorter = self._fewest(self._tokenizer.decode_bytes(way))
        if shorter is None or len(shorter) > limit:
            return None
        return shorter if matcher.validate_tokens(shorter) == len(shorter) else None

    def _found(self, matcher: LLMatcher) -> list[int] | None:
        walker = matcher.deep_copy()
        way: list[int] = []
        tries = MAX_TRIES
        while not walker.is_accepting():
            step = walker.compute_ff_tokens()
            if not step:
                step, tried = self._next(walker, tries)
                tries -= tried
            if not step or len(way) + len(step) > MAX_TOKENS or not walker.consume_tokens(step):
                return None
            way += step
        return way

    def _next(self, walker: LLMatcher, tries: int) -> tuple[list[int], int]:
        """Return the first candidate that may come next, and how many were tried.

        Where a letter may come we are in a string, which a quote ends; elsewhere one would begin
        another string, and a bracket ends more.
        """
        is_text = self._letter is not None and walker.validate_tokens([self._letter]) == 1
        candidates = self._in_text if is_text else self._candidates
        for tried, token_id in enumerate(candidates[:tries], 1):
            if walker.validate_tokens([token_id]):
                return [token_id], tried
        return [], tries

    def _fewest(self, text: bytes) -> list[int] | None:
        """Return a text in as few tokens as there can be, by dynamic programming from its end.

        What was found for a text is known of its ends, too: a way is mostly the rest of the last.
        """
        if self._ids is None:
            self._ids = _spellings(self._tokenizer)
        ids = self._ids
        last, known = self._written
        if not last.endswith(text):
            known = _counts(text, ids)
            self._written = text, known
        counts = known[len(known) - len(text) - 1 :]
        found: list[int] = []
        at = 0
        while at < len(text):
            for end in range(min(len(text), at + MAX_SPELLED), at, -1):
                if counts[end] == counts[at] - 1 and (id := ids.get(text[at:end])) is not None:
                    found.append(id)
                    at = end
                    break
            else:
                return None  # no tokens for a byte of it
        return found


def _counts(text: bytes, ids: dict[bytes, int]) -> list[int]:
    """Return the fewest tokens of each end of a text: of all of it, …, of nothing."""
    size = len(text)
    counts = [0] * (size + 1)
    for at in range(size - 1, -1, -1):
        counts[at] = 1 + min(
            (
                counts[end]
                for end in range(at + 1, min(size, at + MAX_SPELLED) + 1)
                if text[at:end] in ids
            ),
            default=size,
        )
    return counts


def _spellings(tokenizer: LLTokenizer) -> dict[bytes, int]:
    """Return the ids of all tokens that are text, by their bytes. A tenth of a second."""
    found: dict[bytes, int] = {}
    for token_id in range(tokenizer.vocab_size):
        if not tokenizer.is_special_token(token_id):
            found.setdefault(tokenizer.decode_bytes([token_id]), token_id)
    return found


def _token_of(tokenizer: LLTokenizer, data: bytes) -> int | None:
    token_ids = tokenizer.tokenize_bytes(data)
    is_exact = len(token_ids) == 1 and tokenizer.decode_bytes(token_ids) == data
    return token_ids[0] if is_exact else None
