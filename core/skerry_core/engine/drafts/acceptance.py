"""How often a sequence's drafts are right: see `speculation`."""

from __future__ import annotations

from skerry_core.batch import Int32

_PRIOR = 0.2  # before any was seen: too little for a draft, until a guess was right
_PRIOR_WEIGHT = 2.0  # tokens
_KEPT = 0.9  # of the counts, at each draft or guess
_SHORT, _LONG = 4, 8  # tokens: up to, from


class Acceptance:
    """Fading counts of one sequence's drafted tokens, tested and accepted, by length of match.

    What would be drafted is guessed where that does not pay, too, and compared with the token that
    comes: a sequence that begins to repeat itself is found out, one that does not pays nothing.
    """

    __slots__ = ("_accepted", "_guess", "_tested")

    def __init__(self) -> None:
        self._accepted = [0.0, 0.0, 0.0]
        self._tested = [0.0, 0.0, 0.0]
        self._guess = (0, 0, 0)  # place of a token, what it may be, and after which match

    def of(self, match: int) -> float:
        """Return the chance that a token drafted from such a match is right if those before it
        are."""
        kind = _kind(match)
        accepted = self._accepted[kind] + _PRIOR_WEIGHT * _PRIOR
        return accepted / (self._tested[kind] + _PRIOR_WEIGHT)

    def note(self, match: int, num_drafts: int, num_accepted: int) -> None:
        """Count a draft that has run. What came after its first wrong token says nothing."""
        kind = _kind(match)
        self._accepted[kind] = _KEPT * self._accepted[kind] + num_accepted
        self._tested[kind] = _KEPT * self._tested[kind] + min(num_accepted + 1, num_drafts)

    def guess(self, place: int, token_id: int, match: int) -> None:
        """Remember that the token at `place`, which is not there yet, may be this one."""
        self._guess = place, token_id, match

    def count_guess(self, tokens: Int32) -> None:
        """Count the guess if the token is there now."""
        place, guessed, match = self._guess
        if 0 < place < len(tokens):
            self.note(match, 1, int(tokens[place] == guessed))
            self._guess = 0, 0, 0


def _kind(match: int) -> int:
    return 0 if match <= _SHORT else 1 if match < _LONG else 2
