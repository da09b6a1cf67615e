"""Token ids in, text out, for one choice of one request. No I/O.

Text is held back in two places: bytes that are not yet a whole UTF-8 character, and text that may
become a stop string. Log-probabilities travel with their text: a token's entry is let go once some
of its text, or of the text after it, has been let go, so that after a stop the entries spell what
was sent and nothing behind it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from skerry import wire
from skerry_edge.text.stops import StopMatcher
from skerry_regions.wire.protocol import TokenLogprob

_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")


class IncrementalDecoder(Protocol):
    def push(self, token_ids: Iterable[int], /) -> str: ...
    def flush(self) -> str: ...


class Vocabulary(Protocol):
    """What a transcript needs of a `TextModel`."""

    def token_bytes(self, token_id: int) -> bytes: ...
    def detokenizer(self) -> IncrementalDecoder: ...


class Transcript:
    """The growing text of one choice.

    `num_tokens` counts the tokens up to the end of the text: those that complete a stop string are
    counted, those after it are not. `stopped` is set by a stop string; the caller then cancels.
    `offsets` says where in the text the tokens of the entries returned last begin.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stop_token_ids: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
        tells_stop_token: bool = False,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        """`tells_stop_token`: its logprobs are returned, though it has no text. `marks` are control
        tokens that stand in the text, each as a noncharacter, which then is nothing else there."""
        self.num_tokens = 0
        self.stopped = False
        self.is_answer = True  # what comes is: elsewhere no stop strings are looked for
        self.offsets: list[int] = []
        self._vocabulary = vocabulary
        self._detokenizer = vocabulary.detokenizer()
        self._stop_token_ids = stop_token_ids
        self._tells_stop_token = tells_stop_token
        self._marks = marks or {}
        self._matcher = StopMatcher(stops) if stops else None
        self._seen = 0  # characters that came out of the detokenizer
        self._sent = 0  # characters let go
        self._held: deque[tuple[int, wire.TokenLogprob]] = (
            deque()
        )  # (characters seen before it, entry)

    @property
    def matched_stop(self) -> str | None:
        """Return the stop string that ended the text."""
        return self._matcher.matched if self._matcher is not None else None

    def push(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> tuple[str, list[wire.TokenLogprob]]:
        """Add a step's tokens; return the text and the entries that may now be sent."""
        if self._matcher is None and logprobs is None:
            self.num_tokens += len(ids)
            return self._decoded(self._visible(ids)), []
        text = ""
        for i, token_id in enumerate(ids):
            if self.stopped:
                break
            self.num_tokens += 1
            is_text = token_id not in self._stop_token_ids
            if logprobs is not None and (is_text or self._tells_stop_token):
                entry = token_logprob(self._vocabulary, token_id, logprobs[i])
                self._held.append((self._seen, entry))
            if is_text:
                text += self._let_go(self._decoded((token_id,)))
        return text, self._entries_before(self._sent)

    def finish(self) -> tuple[str, list[wire.TokenLogprob]]:
        """Return what was still held back when no more tokens come."""
        if self.stopped:
            self.offsets = []
            return "", []
        text = self._let_go(self._detokenizer.flush())
        if self._matcher is not None and not self.stopped:
            text += self._matcher.flush()
        return text, self._entries_before(None if not self.stopped else self._sent)

    def _decoded(self, ids: Sequence[int]) -> str:
        if not self._marks:
            return self._detokenizer.push(ids)
        text = ""
        for token_id in ids:
            if (mark := self._marks.get(token_id)) is not None:
                text += self._detokenizer.flush() + mark
            else:
                text += _NONCHARACTERS.sub("\ufffd", self._detokenizer.push((token_id,)))
        return text

    def _visible(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids without the stop token, which ends the answer and is not part of its
        text."""
        return ids[:-1] if ids and ids[-1] in self._stop_token_ids else ids

    def _let_go(self, text: str) -> str:
        self._seen += len(text)
        if self._matcher is not None and not self.is_answer:
            text = self._matcher.flush() + text
        elif self._matcher is not None:
            text, self.stopped = self._matcher.push(text)
        self._sent += len(text)
        return text

    def _entries_before(self, end: int | None) -> list[wire.TokenLogprob]:
        entries = []
        self.offsets = []
        while self._held and (end is None or self._held[0][0] < end):
            offset, entry = self._held.popleft()
            self.offsets.append(offset)
            entries.append(entry)
        return entries


def token_logprob(
    vocabulary: Vocabulary, token_id: int, logprobs: TokenLogprob
) -> wire.TokenLogprob:
    """Return the log-probabilities of a token and of the likeliest ones in its place, with their
    text."""
    chosen, top = logprobs
    data = vocabulary.token_bytes(token_id)
    likeliest = [_top(vocabulary, *each) for each in top]
    return wire.TokenLogprob(_text(data), _finite(chosen), list(data), likeliest)


def _top(vocabulary: Vocabulary, token_id: int, logprob: float) -> wire.TopLogprob:
    data = vocabulary.token_bytes(token_id)
    return wire.TopLogprob(_text(data), _finite(logprob), list(data))


def _finite(logprob: float) -> float:
    """Return it within JSON's reach: -9999 is what OpenAI sends for a token that cannot be."""
    return min(0.0, max(logprob, -9999.0))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
