"""Names of the blocks that a region holds, as other regions are sent them.

One edge of each region and model sends: numbered changes, or everything. A name is 32 bits of a
block's digest; of all blocks one in `2**level` is sent, by other bits of the digest, so that both
sides know which without knowing positions. Level 0 names every block of 64 tokens, level 5 one per
2,048. The level rises when more is sent than the budget allows, and stays: what was left out is
not known any more. Most reuse is a session's second turn, so that thinning by popularity would
lose it; thinning by depth does not.

Pure: changes, numbers and the time are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from skerry_regions.speeds import Count

NAME_BYTES = 4
MAX_LEVEL = 12
MAX_NAMES = 1 << 18  # of one region and model: a message of 1 MiB
BYTES_PER_SECOND = 32_768.0  # to each edge that listens
RATE_SECONDS = 30.0  # memory of how much is sent

Names = Annotated[bytes, Meta(max_length=2 * MAX_NAMES * NAME_BYTES)]


class NameNews(Struct, frozen=True, kw_only=True):
    """Changes since `seq - 1`, or everything as of `seq`. Names are 4 bytes each."""

    seq: Count
    level: Annotated[int, Meta(ge=0, le=MAX_LEVEL)]
    added: Names = b""
    dropped: Names = b""
    is_whole: bool = False


class AdvertisedNames:
    """The sending side: which names the nodes of a region hold. `PrefixListener`."""

    def __init__(self, budget: float = BYTES_PER_SECOND, max_names: int = MAX_NAMES) -> None:
        """`budget`: bytes per second to each listener."""
        self._budget, self._max_names = budget, max_names
        self._level = 0
        self._held: dict[str, set[bytes]] = {}  # by node: names with the bits that thin them
        self._holders: dict[bytes, int] = {}  # name → how many nodes
        self._changed: dict[bytes, None] = {}
        self._seq = 0
        self._rate = 0.0  # bytes per second
        self._at = -math.inf
        self._is_thinned = False  # since the last news: what was sent before is void

    def told(self, node: str, digests: Sequence[bytes]) -> None:
        """See `PrefixListener`."""
        held = self._held.setdefault(node, set())
        for digest in digests:
            name = digest[8:14]
            if _is_told(name, self._level) and name not in held:
                held.add(name)
                count = self._holders.get(name, 0)
                self._holders[name] = count + 1
                if not count:
                    self._change(name)
        while len(self._holders) > self._max_names and self._level < MAX_LEVEL:
            self._thin()

    def forgotten(self, node: str, digests: Sequence[bytes]) -> None:
        """See `PrefixListener`."""
        if held := self._held.get(node):
            self._drop(held, held.intersection(digest[8:14] for digest in digests))

    def cleared(self, node: str) -> None:
        """See `PrefixListener`."""
        if held := self._held.pop(node, None):
            self._drop(held, list(held))

    def news(self, now: float) -> NameNews:
        """Return what changed since the last news."""
        self._seq += 1
        if self._is_thinned:
            self._is_thinned = False
            return self._count(self.everything(), now)
        changed, self._changed = self._changed, {}
        added = b"".join(name[:NAME_BYTES] for name in changed if name in self._holders)
        dropped = b"".join(name[:NAME_BYTES] for name in changed if name not in self._holders)
        news = NameNews(seq=self._seq, level=self._level, added=added, dropped=dropped)
        return self._count(news, now)

    def everything(self) -> NameNews:
        """Return all names, as of the last news; changes since then are in it, and will be sent
        again."""
        every = b"".join(name[:NAME_BYTES] for name in self._holders)
        return NameNews(seq=self._seq, level=self._level, added=every, is_whole=True)

    def _drop(self, held: set[bytes], names: Iterable[bytes]) -> None:
        for name in names:
            held.discard(name)
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                self._change(name)

    def _change(self, name: bytes) -> None:
        self._changed[name] = None
        if len(self._changed) > self._max_names:  # no one listens: whoever does is sent everything
            self._changed.clear()
            self._is_thinned = True

    def _count(self, news: NameNews, now: float) -> NameNews:
        size = len(news.added) + len(news.dropped)
        if self._at > -math.inf and not news.is_whole:
            elapsed = max(now - self._at, 1e-3)
            keep = math.exp(-elapsed / RATE_SECONDS)
            self._rate = keep * self._rate + (1 - keep) * size / elapsed
        self._at = now
        if self._rate > self._budget and self._level < MAX_LEVEL:
            self._rate /= 2
            self._thin()
        return news

    def _thin(self) -> None:
        """Publish half as many from now on."""
        self._level += 1
        level = self._level
        self._is_thinned = True
        self._changed.clear()
        self._holders = {
            name: count for name, count in self._holders.items() if _is_told(name, level)
        }
        self._held = {
            node: {name for name in held if _is_told(name, level)}
            for node, held in self._held.items()
        }


class KnownNames:
    """The listening side: what one region holds, as far as it was sent."""

    def __init__(self) -> None:
        self._names: set[int] | None = None  # None: not known from the start
        self._level = 0
        self._seq = 0

    def take(self, news: NameNews) -> bool:
        """Take in news; return False when something before it is missing: request everything."""
        if news.is_whole:
            self._names, self._level, self._seq = set(_numbers(news.added)), news.level, news.seq
            return True
        if self._names is None or news.level != self._level or news.seq > self._seq + 1:
            self._names = None
            return False
        if news.seq == self._seq + 1:
            self._seq = news.seq
            self._names.update(_numbers(news.added))
            self._names.difference_update(_numbers(news.dropped))
            if len(self._names) > 2 * MAX_NAMES:
                self._names = None
        return self._names is not None

    def leading(self, digests: Sequence[bytes]) -> int:
        """Return how many of a prompt's first blocks the region is believed to hold.

        Of the deepest block that it was sent, since a chain is evicted from its end; that is
        too few by half of what one name stands for.
        """
        if not self._names:
            return 0
        for position in range(len(digests) - 1, -1, -1):
            name = digests[position][8:14]
            if _is_told(name, self._level) and (
                int.from_bytes(name[:NAME_BYTES], "little") in self._names
            ):
                return position + 1
        return 0


def _is_told(name: bytes, level: int) -> bool:
    """Decide by bits of the digest that are not among those that are sent."""
    return not int.from_bytes(name[NAME_BYTES:], "little") & ((1 << level) - 1)


def _numbers(names: bytes) -> list[int]:
    whole = names[: len(names) // NAME_BYTES * NAME_BYTES]
    return [int(number) for number in np.frombuffer(whole, "<u4")]
