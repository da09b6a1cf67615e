"""How often a sequence's drafts are right: see `speculation`."""

from __future__ import annotations

_PRIOR = (0.45, 0.65, 0.85)  # of short, middling and long matches, before any was tried
_PRIOR_WEIGHT = 3.0  # tokens
_KEPT = 0.9  # of the counts, at each draft
_KEPT_IDLE = 0.995  # at each step without one: a sequence that begins to repeat is found out
_SHORT, _LONG = 4, 8  # tokens: up to, from


class Acceptance:
    """Fading counts of one sequence's drafted tokens, tested and accepted, by length of match."""

    __slots__ = ("_accepted", "_tested")

    def __init__(self) -> None:
        self._accepted = [0.0, 0.0, 0.0]
        self._tested = [0.0, 0.0, 0.0]

    def of(self, match: int) -> float:
        """The chance that a token drafted from such a match is right if those before it are."""
        return self._chance(_kind(match))

    @property
    def highest(self) -> float:
        return max(self._chance(0), self._chance(1), self._chance(2))

    def note(self, match: int, num_drafts: int, num_accepted: int) -> None:
        """Count a draft that has run. What came after its first wrong token tells nothing."""
        kind = _kind(match)
        self._accepted[kind] = _KEPT * self._accepted[kind] + num_accepted
        self._tested[kind] = _KEPT * self._tested[kind] + min(num_accepted + 1, num_drafts)

    def fade(self) -> None:
        """Count a step without a draft."""
        for kind in range(3):
            self._accepted[kind] *= _KEPT_IDLE
            self._tested[kind] *= _KEPT_IDLE

    def _chance(self, kind: int) -> float:
        accepted = self._accepted[kind] + _PRIOR_WEIGHT * _PRIOR[kind]
        return accepted / (self._tested[kind] + _PRIOR_WEIGHT)


def _kind(match: int) -> int:
    return 0 if match <= _SHORT else 1 if match < _LONG else 2
