"""Stop strings in a stream of text: found across chunk borders, with as little held back as can be.

An Aho-Corasick automaton (Aho & Corasick, CACM 1975): its state is the longest end of the text so
far that begins some stop string, which is exactly the text that must not be sent yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Cuts a stream at the first stop string to be complete; of several ending there, the longest.

    Does not depend on how the text is split into chunks. Time is linear in the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Empty stop strings are ignored; with none the text passes through."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in this state; 0: none
        self._fallback = [0]
        for stop in filter(None, stops):
            self._insert(stop)
        self._link()
        self._state = 0
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    @property
    def stopped(self) -> bool:
        """Return whether a stop string was found."""
        return self.matched is not None

    def push(self, text: str) -> tuple[str, bool]:
        """Return text that may be sent now, and whether a stop string was completed.

        The stop string itself is never part of the text; after it everything is dropped.
        """
        if self.stopped:
            return "", True
        if len(self._next) == 1:
            return text, False
        state = self._state
        for index, character in enumerate(text):
            state = self._step(state, character)
            if length := self._match[state]:
                seen = self._held + text[: index + 1]
                self.matched = seen[len(seen) - length :]
                self._held = ""
                return seen[: len(seen) - length], True
        self._state = state
        seen = self._held + text
        sent = len(seen) - self._depth[state]
        self._held = seen[sent:]
        return seen[:sent], False

    def flush(self) -> str:
        """Return what was held back, at the stream's end: no stop string can follow."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _step(self, state: int, character: str) -> int:
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallback[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
                self._fallback.append(0)
            state = following
        self._match[state] = len(stop)

    def _link(self) -> None:
        """Give each state its fallback: the longest proper end of it that is a state as well."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._next[state].items():
                self._fallback[following] = self._step(self._fallback[state], character)
                if not self._match[following]:
                    self._match[following] = self._match[self._fallback[following]]
                queue.append(following)
