"""Which node holds which KV blocks: an index of digests, fed by the nodes' own events.

Messages (`prefix_news`) may be lost, doubled and reordered. The directory applies a node's deltas
strictly in order, so that what it believes is always what the node held at some moment:

    EXACT      everything the node is known to have said has been applied
    DEGRADED   something is missing; the last applied state is still used, a snapshot is wanted
    FALLBACK   nothing is known of this incarnation; only our own expectations are used

On top of that, `expect` notes the blocks of a prompt that was just sent to a node, so that the
next prompt with the same prefix, a moment later, already finds it there.

A wrong entry costs time (a node recomputes what it lacks), never correctness. Every table is
bounded. Pure: messages and the time are arguments.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from skerry_regions.prefix_news import PrefixDelta, PrefixSnapshot, Tier


class IndexState(Enum):
    """How much of what a node said is known."""

    EXACT = "exact"
    DEGRADED = "degraded"
    FALLBACK = "fallback"


class CachedPrefix(NamedTuple):
    """The longest unbroken run of a prompt's first blocks on one node."""

    blocks: int = 0  # in any tier
    in_file: int = 0  # of these, in the file tier
    resident: int = 0  # leading blocks that are all in memory


NOTHING_CACHED = CachedPrefix()


class DirectoryLimits(Struct, frozen=True, kw_only=True):
    """Bounds of a directory; beyond them the oldest entries are forgotten."""

    max_nodes: int = 1024
    max_node_digests: int = 1_000_000
    max_digests: int = 4_000_000  # (digest, node) pairs over all nodes; about 150 bytes each
    max_pending: int = 256  # deltas held back while an earlier one is missing
    expect_seconds: float = 10.0  # how long an expectation stands
    max_expected: int = 200_000  # (digest, node) pairs expected


class _NodeIndex:
    """One node's blocks and where we are in its sequence."""

    def __init__(self, bit: int) -> None:
        self.bit = bit  # 1 << slot in the holder masks
        self.incarnation = -1
        self.applied = 0  # seq of the last applied delta
        self.known = 0  # highest seq the node is known to have sent
        self.has_base = False  # the applied state is complete as of `applied`
        self.truncated = False  # limits made us forget some of it
        self.tiers: dict[bytes, Tier] = {}  # oldest first
        self.pending: dict[int, PrefixDelta] = {}


class PrefixDirectory:
    """Digest → nodes. All of a router's knowledge of who has which prefix."""

    def __init__(self, limits: DirectoryLimits | None = None) -> None:
        self._limits = limits or DirectoryLimits()
        self._nodes: dict[str, _NodeIndex] = {}
        self._names: list[str | None] = []  # slot → node
        self._holders: dict[bytes, int] = {}  # digest → mask of nodes
        self._in_file: dict[bytes, int] = {}  # digest → mask of nodes that hold it in their file
        self._num_digests = 0
        self._expected: dict[bytes, dict[int, int]] = {}  # digest → {bit: number of expectations}
        self._expectations: deque[tuple[float, int, tuple[bytes, ...]]] = deque()
        self._num_expected = 0

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def apply(self, message: PrefixDelta | PrefixSnapshot) -> None:
        """Take in a node's message; old, doubled and foreign ones do no harm."""
        index = self._index(message.node)
        if index is None or message.incarnation < index.incarnation:
            return
        if message.incarnation > index.incarnation:
            self._restart(index, message.incarnation)
        index.known = max(index.known, message.seq)
        if isinstance(message, PrefixSnapshot):
            self._apply_snapshot(index, message)
        elif message.seq > index.applied:
            self._hold_back(index, message)
        self._catch_up(index)

    def heartbeat(self, node: str, incarnation: int, seq: int) -> None:
        """A node says how far its sequence is, so that a lost last message shows."""
        index = self._index(node)
        if index is None or incarnation < index.incarnation:
            return
        if incarnation > index.incarnation:
            self._restart(index, incarnation)
        index.known = max(index.known, seq)

    def remove_node(self, node: str) -> None:
        """Forget a node and everything it holds."""
        index = self._nodes.pop(node, None)
        if index is None:
            return
        self._clear(index)
        for _, bit, digests in self._expectations:
            if bit == index.bit:
                self._unexpect(bit, digests)
        self._expectations = deque(e for e in self._expectations if e[1] != index.bit)
        self._names[index.bit.bit_length() - 1] = None

    def expect(self, node: str, digests: Sequence[bytes], now: float) -> None:
        """Note that `node` is about to hold these blocks, for a while or until it says so."""
        index = self._index(node)
        if index is None:
            return
        kept = tuple(digests[: self._limits.max_expected])
        while self._expectations and self._num_expected + len(kept) > self._limits.max_expected:
            self._drop_oldest_expectation()
        self._expectations.append((now + self._limits.expect_seconds, index.bit, kept))
        self._num_expected += len(kept)
        for digest in kept:
            counts = self._expected.setdefault(digest, {})
            counts[index.bit] = counts.get(index.bit, 0) + 1

    def expire(self, now: float) -> None:
        """Drop expectations whose time is over. Cheap; call before matching."""
        while self._expectations and self._expectations[0][0] <= now:
            self._drop_oldest_expectation()

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    def match(self, node: str, digests: Sequence[bytes]) -> CachedPrefix:
        """How much of a prompt's blocks `node` is believed to hold, expectations included."""
        return self.match_all(digests).get(node, NOTHING_CACHED)

    def match_all(
        self, digests: Sequence[bytes], *, expected: bool = True
    ) -> dict[str, CachedPrefix]:
        """`match` for every node that holds at least the first block, in one walk.

        Without `expected`, only what nodes have said themselves counts.
        """
        found: dict[str, CachedPrefix] = {}
        files: dict[int, tuple[int, int]] = {}  # bit → (first position, count) in the file tier
        alive = -1
        for position, digest in enumerate(digests):
            holders = self._mask(digest) if expected else self._holders.get(digest, 0)
            self._found(found, alive & ~holders if position else 0, position, files)
            alive &= holders
            if not alive:
                return found
            for bit in _bits(self._in_file.get(digest, 0) & alive):
                first, count = files.get(bit, (position, 0))
                files[bit] = first, count + 1
        if digests:
            self._found(found, alive, len(digests), files)
        return found

    def knows(self, digest: bytes) -> bool:
        """Whether any node has said that it holds this block."""
        return digest in self._holders

    def state(self, node: str) -> IndexState:
        index = self._nodes.get(node)
        if index is None or not index.has_base:
            return IndexState.FALLBACK
        complete = index.applied == index.known and not index.truncated
        return IndexState.EXACT if complete else IndexState.DEGRADED

    def wanted_snapshots(self) -> list[str]:
        """Nodes that should be asked for a snapshot, because something they said is missing."""
        return [
            node
            for node, index in self._nodes.items()
            if index.incarnation >= 0 and (index.applied < index.known or not index.has_base)
        ]

    def num_digests(self, node: str) -> int:
        """Blocks that `node` is believed to hold, expectations not counted."""
        index = self._nodes.get(node)
        return len(index.tiers) if index else 0

    def newest(self, node: str, count: int) -> list[bytes]:
        """Blocks that a node told last, at most so many."""
        index = self._nodes.get(node)
        return list(islice(reversed(index.tiers), count)) if index else []

    # ── one node's sequence ─────────────────────────────────────────────────────────────────────

    def _index(self, node: str) -> _NodeIndex | None:
        """The node's index, made on first sight; None when there are too many nodes."""
        if (index := self._nodes.get(node)) is not None:
            return index
        if len(self._nodes) >= self._limits.max_nodes:
            return None
        if None in self._names:
            slot = self._names.index(None)
            self._names[slot] = node
        else:
            slot = len(self._names)
            self._names.append(node)
        index = self._nodes[node] = _NodeIndex(1 << slot)
        return index

    def _restart(self, index: _NodeIndex, incarnation: int) -> None:
        """A node's new life starts empty at seq 0; what its old life held is gone."""
        self._clear(index)
        index.incarnation = incarnation
        index.applied = index.known = 0
        index.has_base = index.truncated = False
        index.pending.clear()

    def _hold_back(self, index: _NodeIndex, delta: PrefixDelta) -> None:
        index.pending[delta.seq] = delta
        if len(index.pending) > self._limits.max_pending:
            # The newest survive: a snapshot will overtake the oldest first.
            del index.pending[min(index.pending)]

    def _apply_snapshot(self, index: _NodeIndex, snapshot: PrefixSnapshot) -> None:
        if index.has_base and snapshot.seq < index.applied:
            return
        self._clear(index)
        self._put(index, snapshot.file, "file")
        self._put(index, snapshot.memory, "memory")
        index.applied, index.has_base = snapshot.seq, True
        self._enforce_limits(index)

    def _catch_up(self, index: _NodeIndex) -> None:
        """Apply what follows without a gap, and drop what has been overtaken."""
        while (delta := index.pending.pop(index.applied + 1, None)) is not None:
            self._put(index, delta.sealed, "memory")
            self._put(index, delta.filed, "file")
            for digest in delta.evicted:
                self._forget(index, digest)
            index.applied = delta.seq
            index.has_base = True  # seq 1 follows the empty start
            self._enforce_limits(index)
        for seq in [seq for seq in index.pending if seq <= index.applied]:
            del index.pending[seq]

    # ── tables ──────────────────────────────────────────────────────────────────────────────────

    def _put(self, index: _NodeIndex, digests: Iterable[bytes], tier: Tier) -> None:
        for digest in digests:
            self._forget(index, digest)  # so that it becomes the newest
            index.tiers[digest] = tier
            self._holders[digest] = self._holders.get(digest, 0) | index.bit
            if tier == "file":
                self._in_file[digest] = self._in_file.get(digest, 0) | index.bit
            self._num_digests += 1

    def _forget(self, index: _NodeIndex, digest: bytes) -> None:
        if index.tiers.pop(digest, None) is None:
            return
        self._num_digests -= 1
        for table in (self._holders, self._in_file):
            if mask := table.get(digest, 0) & ~index.bit:
                table[digest] = mask
            else:
                table.pop(digest, None)

    def _clear(self, index: _NodeIndex) -> None:
        for digest in list(index.tiers):
            self._forget(index, digest)
        index.truncated = False

    def _enforce_limits(self, index: _NodeIndex) -> None:
        while index.tiers and (
            len(index.tiers) > self._limits.max_node_digests
            or self._num_digests > self._limits.max_digests
        ):
            self._forget(index, next(iter(index.tiers)))
            index.truncated = True

    def _mask(self, digest: bytes) -> int:
        mask = self._holders.get(digest, 0)
        for bit in self._expected.get(digest, ()):
            mask |= bit
        return mask

    def _found(
        self,
        found: dict[str, CachedPrefix],
        mask: int,
        blocks: int,
        files: dict[int, tuple[int, int]],
    ) -> None:
        for bit in _bits(mask):
            if (node := self._names[bit.bit_length() - 1]) is not None:
                first, count = files.get(bit, (blocks, 0))
                found[node] = CachedPrefix(blocks, count, first)

    def _drop_oldest_expectation(self) -> None:
        _, bit, digests = self._expectations.popleft()
        self._unexpect(bit, digests)

    def _unexpect(self, bit: int, digests: Sequence[bytes]) -> None:
        self._num_expected -= len(digests)
        for digest in digests:
            counts = self._expected[digest]
            counts[bit] -= 1
            if not counts[bit]:
                del counts[bit]
            if not counts:
                del self._expected[digest]


def longest_matches(found: dict[str, CachedPrefix], count: int) -> list[str]:
    """The `count` nodes with the longest prefixes, longest first, ties by name."""
    return heapq.nsmallest(count, found, key=lambda node: (-found[node].blocks, node))


def _bits(mask: int) -> Iterable[int]:
    """Powers of two in `mask`, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
