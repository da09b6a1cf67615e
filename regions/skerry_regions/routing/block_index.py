"""Which slot holds which KV blocks: the index behind a directory of prefixes.

Two implementations: `PlainIndex` here, of dictionaries, and `fast.index.CompiledIndex`. A slot is a
small number that stands for a node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from skerry_regions.prefix_news import Tier


class CachedPrefix(NamedTuple):
    """The longest unbroken run of a prompt's first blocks on one node."""

    blocks: int = 0  # in any tier
    in_file: int = 0  # of these, in the file tier
    resident: int = 0  # leading blocks that are all in memory


NOTHING_CACHED = CachedPrefix()


class DirectoryLimits(Struct, frozen=True, kw_only=True):
    """Bounds of a directory: beyond them it knows less."""

    max_nodes: int = 16_384
    max_node_digests: int = 1_000_000
    max_digests: int = 32_000_000  # (digest, node) pairs over all nodes, of the compiled index
    max_plain_digests: int = 4_000_000  # of the plain one, about 150 bytes each
    max_pending: int = 256  # deltas held back while an earlier one is missing
    expect_seconds: float = 10.0  # how long an expectation stands
    max_expected: int = 200_000  # (digest, node) pairs expected


class BlockIndex(Protocol):
    """Digest → slots, by the nodes' own word (`tell`) and by expectation."""

    def tell(self, slot: int, digests: Sequence[bytes], tier: Tier) -> None:
        """Take in that a slot holds blocks in a tier, as far as limits allow."""
        ...

    def forget(self, slot: int, digests: Sequence[bytes]) -> None:
        """Take in that a slot no longer holds blocks."""
        ...

    def clear(self, slot: int) -> None:
        """Forget everything that a slot said."""
        ...

    def remove(self, slot: int) -> None:
        """Forget a slot with what it is expected to hold: its number stands for another node."""
        ...

    def expect(self, slot: int, digests: Sequence[bytes], now: float) -> None:
        """Note that a slot is about to hold blocks, for a while or until it says so."""
        ...

    def expire(self, now: float) -> None:
        """Drop expectations whose time is over."""
        ...

    def match_all(self, digests: Sequence[bytes], *, expected: bool) -> dict[int, CachedPrefix]:
        """Return the leading blocks of each slot that holds the first one, in one walk."""
        ...

    def knows(self, digest: bytes) -> bool:
        """Return whether any slot said that it holds a block."""
        ...

    def count(self, slot: int) -> int:
        """Return how many blocks a slot said that it holds."""
        ...


class PlainIndex:
    """`BlockIndex` of dictionaries, with slots as bits of integers; beyond limits the oldest go."""

    def __init__(self, limits: DirectoryLimits) -> None:
        self._limits = limits
        self._tiers: dict[int, dict[bytes, Tier]] = {}  # by slot, oldest first
        self._holders: dict[bytes, int] = {}  # digest → mask of slots
        self._in_file: dict[bytes, int] = {}
        self._num_digests = 0
        self._expected: dict[bytes, dict[int, int]] = {}  # digest → {slot: expectations}
        self._expectations: deque[tuple[float, int, tuple[bytes, ...]]] = deque()
        self._num_expected = 0

    def tell(self, slot: int, digests: Sequence[bytes], tier: Tier) -> None:
        """See `BlockIndex`."""
        tiers, bit = self._tiers.setdefault(slot, {}), 1 << slot
        for digest in digests:
            self._forget(slot, digest)  # so that it becomes the newest
            tiers[digest] = tier
            self._holders[digest] = self._holders.get(digest, 0) | bit
            if tier == "file":
                self._in_file[digest] = self._in_file.get(digest, 0) | bit
            self._num_digests += 1
        while tiers and (
            len(tiers) > self._limits.max_node_digests
            or self._num_digests > min(self._limits.max_digests, self._limits.max_plain_digests)
        ):
            self._forget(slot, next(iter(tiers)))

    def forget(self, slot: int, digests: Sequence[bytes]) -> None:
        """See `BlockIndex`."""
        for digest in digests:
            self._forget(slot, digest)

    def clear(self, slot: int) -> None:
        """See `BlockIndex`."""
        self.forget(slot, list(self._tiers.get(slot, ())))
        self._tiers.pop(slot, None)

    def remove(self, slot: int) -> None:
        """See `BlockIndex`."""
        self.clear(slot)
        for _, of, digests in self._expectations:
            if of == slot:
                self._unexpect(slot, digests)
        self._expectations = deque(each for each in self._expectations if each[1] != slot)

    def expect(self, slot: int, digests: Sequence[bytes], now: float) -> None:
        """See `BlockIndex`."""
        kept = tuple(digests[: self._limits.max_expected])
        while self._expectations and self._num_expected + len(kept) > self._limits.max_expected:
            self._drop_oldest_expectation()
        self._expectations.append((now + self._limits.expect_seconds, slot, kept))
        self._num_expected += len(kept)
        for digest in kept:
            counts = self._expected.setdefault(digest, {})
            counts[slot] = counts.get(slot, 0) + 1

    def expire(self, now: float) -> None:
        """See `BlockIndex`."""
        while self._expectations and self._expectations[0][0] <= now:
            self._drop_oldest_expectation()

    def match_all(self, digests: Sequence[bytes], *, expected: bool) -> dict[int, CachedPrefix]:
        """See `BlockIndex`."""
        found: dict[int, CachedPrefix] = {}
        files: dict[int, tuple[int, int]] = {}  # slot → (first position, count) in the file tier
        alive = -1
        for position, digest in enumerate(digests):
            holders = self._mask(digest) if expected else self._holders.get(digest, 0)
            _found(found, alive & ~holders if position else 0, position, files)
            alive &= holders
            if not alive:
                return found
            for slot in _slots(self._in_file.get(digest, 0) & alive):
                first, count = files.get(slot, (position, 0))
                files[slot] = first, count + 1
        if digests:
            _found(found, alive, len(digests), files)
        return found

    def knows(self, digest: bytes) -> bool:
        """See `BlockIndex`."""
        return digest in self._holders

    def count(self, slot: int) -> int:
        """See `BlockIndex`."""
        return len(self._tiers.get(slot, ()))

    def held(self, slot: int, tier: Tier) -> list[bytes]:
        """Return what a slot said that it holds in a tier."""
        return [digest for digest, of in self._tiers.get(slot, {}).items() if of == tier]

    def _forget(self, slot: int, digest: bytes) -> None:
        if self._tiers.get(slot, {}).pop(digest, None) is None:
            return
        self._num_digests -= 1
        for table in (self._holders, self._in_file):
            if mask := table.get(digest, 0) & ~(1 << slot):
                table[digest] = mask
            else:
                table.pop(digest, None)

    def _mask(self, digest: bytes) -> int:
        mask = self._holders.get(digest, 0)
        for slot in self._expected.get(digest, ()):
            mask |= 1 << slot
        return mask

    def _drop_oldest_expectation(self) -> None:
        _, slot, digests = self._expectations.popleft()
        self._unexpect(slot, digests)

    def _unexpect(self, slot: int, digests: Sequence[bytes]) -> None:
        self._num_expected -= len(digests)
        for digest in digests:
            counts = self._expected[digest]
            counts[slot] -= 1
            if not counts[slot]:
                del counts[slot]
            if not counts:
                del self._expected[digest]


def _found(
    found: dict[int, CachedPrefix], mask: int, blocks: int, files: dict[int, tuple[int, int]]
) -> None:
    for slot in _slots(mask):
        first, count = files.get(slot, (blocks, 0))
        found[slot] = CachedPrefix(blocks, count, first)


def _slots(mask: int) -> Iterable[int]:
    """Yield the numbers of the bits in `mask`, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit
