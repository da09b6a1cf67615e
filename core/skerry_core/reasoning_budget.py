"""How long a model may reason before it answers: at the limit the engine writes the end itself.

    │ begin │ reasoning … at most `max_tokens` │ end │ answer

The tokens that end it take the place of what was sampled, one in each position, and everything that
reads the output takes them as it takes any other: its grammar, its penalties, its client.

A grammar could count too, but llguidance's `max_tokens` forbids every rollback of the matcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Protocol

from skerry_core.request import RequestRejected

Mark = Sequence[int] | str
"""What begins or ends reasoning: tokens in a row, or a text in whichever tokens."""


class ReasoningLimit(Protocol):
    """What a request says of its reasoning."""

    @property
    def max_tokens(self) -> int:
        """Return how many tokens it may have, between its marks."""
        ...

    @property
    def end_ids(self) -> Sequence[int]:
        """Return what the engine ends it with; at least one token."""
        ...

    @property
    def begins(self) -> Sequence[Mark]:
        """Return what begins it in the output, any number of times; nothing: the prompt did."""
        ...

    @property
    def ends(self) -> Sequence[Mark]:
        """Return what ends it when the model does: its own mark, a call of a tool."""
        ...


class ReasoningBudget:
    """What is left of one output's limit.

    A function of the limit and of the output's tokens, so it is the same after a preemption, and on
    another node that is given them.
    """

    __slots__ = (
        *("_begins", "_ends", "_has_ended", "_is_open", "_is_over", "_left"),
        *("_num_written", "_recent", "end_ids"),
    )

    def __init__(
        self,
        limit: ReasoningLimit,
        output_ids: Iterable[int] = (),
        token_texts: Sequence[bytes] = (),
    ) -> None:
        """It has taken the tokens of an earlier attempt. `token_texts` are the bytes of each token
        of the vocabulary, for marks that are texts.

        Raises RequestRejected for such a mark without them, and for an end of no tokens.
        """
        if not limit.end_ids:
            raise RequestRejected("no tokens end the reasoning at its limit")
        self.end_ids = limit.end_ids  # that are written at the limit
        self._begins = _Marks(limit.begins, token_texts)
        self._ends = _Marks(limit.ends, token_texts)
        self._left = limit.max_tokens
        self._recent: tuple[int, ...] = ()  # tokens in which a mark may go on
        self._num_written = 0  # of `end_ids`: the output's last tokens
        self._has_ended = False  # one of those completed a mark
        self._is_open = not limit.begins
        self._is_over = False
        for token_id in output_ids:
            if self._is_over:
                break
            self.advance(token_id)

    @property
    def forced(self) -> int | None:
        """Return the token that comes next; None: it is the model's choice."""
        return self.end_ids[self._num_written] if self._is_open and not self._left else None

    def count_free(self, token_ids: Sequence[int]) -> int:
        """Return how many of the tokens, if they come next, leave the one after to the model."""
        if self._is_over or self._left > len(token_ids):
            return len(token_ids)
        ahead = copy(self)
        for count, token_id in enumerate(token_ids):
            ahead.advance(token_id)
            if ahead.forced is not None:
                return count
        return len(token_ids)

    def advance(self, token_id: int) -> None:
        """Take the next token of the output."""
        if self._is_over:
            return
        marks = self._ends if self._is_open else self._begins
        self._recent = (*self._recent, token_id)[-marks.num_tokens :]
        is_mark = marks.are_in(self._recent)
        if not self._is_open:
            self._turn(is_open=is_mark)
        elif token_id == self.forced:  # on to its last, which may be behind the model's own mark
            self._num_written += 1
            self._has_ended |= is_mark
            if self._num_written == len(self.end_ids):
                self._turn(is_open=False)
        elif is_mark or self._has_ended:
            self._turn(is_open=False)
        else:  # also where a grammar put another token in the place of the next to be written
            self._num_written = 0
            self._left = max(0, self._left - 1)

    def _turn(self, *, is_open: bool) -> None:
        if is_open != self._is_open:
            self._is_open = is_open
            self._is_over = not (is_open or self._begins)
            self._recent, self._num_written, self._has_ended = (), 0, False


class _Marks:
    """Marks of one kind, as they are found in the last tokens of an output."""

    def __init__(self, marks: Iterable[Mark], token_texts: Sequence[bytes]) -> None:
        self._ids = [tuple(mark) for mark in marks if not isinstance(mark, str)]
        self._texts = [mark.encode() for mark in marks if isinstance(mark, str)]
        self._token_texts = token_texts
        if self._texts and not token_texts:
            raise RequestRejected("a mark of reasoning is a text, and this engine knows tokens")
        self.num_tokens = max([1, *map(len, self._ids), *map(len, self._texts)])  # that one spans

    def __bool__(self) -> bool:
        return bool(self._ids or self._texts)

    def are_in(self, recent: tuple[int, ...]) -> bool:
        """Return whether the last of the output's tokens completes one of them."""
        if any(recent[-len(ids) :] == ids for ids in self._ids):
            return True
        if not self._texts:
            return False
        text = b"".join([self._token_texts[token_id] for token_id in recent])
        return any(mark in text for mark in self._texts)
