"""What a request computed and keeps cached for a time: counted by that time, and priced by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import UNSET, Struct

from skerry.wire import PromptTokensDetails
from skerry_regions.models.catalog import Price
from skerry_regions.wire.pins import Pin, Pinned

LONG_SECONDS = 3600.0  # from which on what is kept has the higher price


class CacheWrites(Struct, frozen=True):
    """Tokens that were computed and stay cached."""

    by_ttl: dict[str, int]  # "5m", "1h", …
    short: int = 0  # kept for less than an hour
    long: int = 0
    lapsed: int = 0  # kept for earlier requests; their time ended for these

    def details(self, cached_tokens: int) -> PromptTokensDetails:
        """Return the parts of a prompt of which so many tokens were cached before."""
        return PromptTokensDetails(
            cached_tokens,
            self.short + self.long,
            {f"ttl_{ttl}_tokens": number for ttl, number in self.by_ttl.items()},
            self.lapsed or UNSET,
        )

    def dollars(self, price: Price) -> float:
        """Return what these cost."""
        short, long = price.writes
        return (self.short * short + self.long * long) / 1e6


def writes_of(done: Iterable[tuple[tuple[Pin, ...], Pinned | None]]) -> CacheWrites:
    """Return what prompts with these pins have written, by what their nodes said."""
    by_ttl: Counter[str] = Counter()
    short = long = lapsed = 0
    for pins, pinned in done:
        written = [0] * len(pins) if pinned is None else pinned.written
        for (_, seconds), number in zip(pins, written, strict=False):
            by_ttl[_name(seconds)] += number
            if seconds < LONG_SECONDS:
                short += number
            else:
                long += number
        lapsed += 0 if pinned is None else pinned.lapsed
    return CacheWrites(dict(by_ttl), short, long, lapsed)


def _name(seconds: float) -> str:
    """Return a time as the dialects write it."""
    for size, letter in ((3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"
