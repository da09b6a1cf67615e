"""Headers of an answer that the rooms behind the rim add to it: limits, cache, placement."""

from __future__ import annotations


class AnswerHeaders(dict[str, str]):
    """One request's, handed on from room to room until its answer begins. Empty values are not
    sent."""

    def fields(self) -> list[tuple[bytes, bytes]]:
        """Return them as ASGI sends them."""
        return [(name.encode(), value.encode("ascii")) for name, value in self.items() if value]
