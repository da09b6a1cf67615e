"""The way to the end of a grammar, so that `max_tokens` does not cut an output in the middle.

The way is found by taking, again and again, the tokens that are forced, or else the first of a few
that tend to end things. It need not be the shortest; it depends on nothing but the place in the
grammar. While the tokens that are left are as many as the way is long, the output can be made
whole: a token that would break this is replaced by the next one of the way.
"""

from __future__ import annotations

from string import ascii_letters

from llguidance import LLMatcher, LLTokenizer

# Bytes that end something in JSON, those that start something short, letters; then all others.
_FAVOURITES = b'"}]0123456789{[ntf-:' + ascii_letters.encode()
MAX_TOKENS = 128  # of a way; where the end is farther, the output may be cut
MAX_TRIES = 400  # of tokens, on one way: less than a millisecond
MARGIN = 64  # tokens: how much farther than at the start the end may be in the middle


class Closings:
    """Finds ways for one vocabulary."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        others = (byte for byte in range(256) if byte not in _FAVOURITES)
        self._candidates = [
            token_id
            for byte in (*_FAVOURITES, *others)
            if (token_id := _token_of(tokenizer, bytes([byte]))) is not None
        ]

    def way(self, matcher: LLMatcher, limit: int = MAX_TOKENS) -> list[int] | None:
        """Return token ids to a whole output, at most `limit`; None when none was found."""
        limit = min(limit, MAX_TOKENS)
        walker = matcher.deep_copy()
        way: list[int] = []
        tries = MAX_TRIES
        while not walker.is_accepting():
            step = walker.compute_ff_tokens()
            if not step:
                step, tried = self._next(walker, tries)
                tries -= tried
            if not step or len(way) + len(step) > limit or not walker.consume_tokens(step):
                return None
            way += step
        return way

    def _next(self, walker: LLMatcher, tries: int) -> tuple[list[int], int]:
        """Return the first candidate that may come next, and how many were tried."""
        for tried, token_id in enumerate(self._candidates[:tries], 1):
            if walker.validate_tokens([token_id]):
                return [token_id], tried
        return [], tries


def _token_of(tokenizer: LLTokenizer, data: bytes) -> int | None:
    token_ids = tokenizer.tokenize_bytes(data)
    is_exact = len(token_ids) == 1 and tokenizer.decode_bytes(token_ids) == data
    return token_ids[0] if is_exact else None
