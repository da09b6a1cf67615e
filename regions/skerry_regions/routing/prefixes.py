"""Which node holds which KV blocks: what nodes say of themselves, in order, and what is expected.

Messages (`prefix_news`) may be lost, doubled and reordered. The directory applies a node's deltas
strictly in order, so that what it believes is always what the node held at some moment. While
something is missing, the last applied state is still used, and a snapshot is wanted; of a node
that has said nothing in this incarnation only our own expectations are used.

On top of that, `expect` notes the blocks of a prompt that was just sent to a node, so that the
next prompt with the same prefix, a moment later, already finds it there.

A wrong entry costs time (a node recomputes what it lacks), never correctness. Every table is
bounded. Pure: messages and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skerry_regions.prefix_news import PrefixDelta, PrefixSnapshot, Tier
from skerry_regions.routing.block_index import (
    BlockIndex,
    CachedPrefix,
    DirectoryLimits,
    PlainIndex,
)


class PrefixListener(Protocol):
    """Follows what nodes hold, in order and without gaps, in any tier."""

    def told(self, node: str, digests: Sequence[bytes]) -> None:
        """Note that a node holds these blocks."""

    def forgotten(self, node: str, digests: Sequence[bytes]) -> None:
        """Note that a node holds them no longer."""

    def cleared(self, node: str) -> None:
        """Note that a node holds nothing."""


class _Sequence:
    """Where we are in one node's numbered changes."""

    def __init__(self, node: str, slot: int) -> None:
        self.node, self.slot = node, slot
        self.incarnation = -1
        self.applied = 0  # seq of the last applied delta
        self.known = 0  # highest seq the node is known to have sent
        self.has_base = False  # the applied state is complete as of `applied`
        self.pending: dict[int, PrefixDelta] = {}

    @property
    def wants_snapshot(self) -> bool:
        """Return whether something that the node said is missing."""
        return self.incarnation >= 0 and (self.applied < self.known or not self.has_base)


class PrefixDirectory:
    """Digest → nodes. All of a router's knowledge of who has which prefix."""

    def __init__(self, limits: DirectoryLimits | None = None) -> None:
        self.limits = limits or DirectoryLimits()
        self.index: BlockIndex = PlainIndex(self.limits)
        self._nodes: dict[str, _Sequence] = {}
        self._names: list[str | None] = []  # slot → node
        self._free: list[int] = []  # slots
        self._listeners: list[PrefixListener] = []

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def apply(self, message: PrefixDelta | PrefixSnapshot) -> None:
        """Take in a node's message; old, doubled and foreign ones do no harm."""
        sequence = self._sequence(message.node)
        if sequence is None or message.incarnation < sequence.incarnation:
            return
        if message.incarnation > sequence.incarnation:
            self._restart(sequence, message.incarnation)
        sequence.known = max(sequence.known, message.seq)
        if isinstance(message, PrefixSnapshot):
            self._apply_snapshot(sequence, message)
        elif message.seq > sequence.applied:
            self._hold_back(sequence, message)
        self._catch_up(sequence)

    def remove_node(self, node: str) -> None:
        """Forget a node and everything it holds."""
        sequence = self._nodes.pop(node, None)
        if sequence is not None:
            self._clear(sequence)
            self.index.remove(sequence.slot)
            self._names[sequence.slot] = None
            self._free.append(sequence.slot)

    def expect(self, node: str, digests: Sequence[bytes], now: float) -> None:
        """Note that `node` is about to hold these blocks, for a while or until it says so."""
        if (sequence := self._sequence(node)) is not None:
            self.index.expect(sequence.slot, digests, now)

    def expire(self, now: float) -> None:
        """Drop expectations whose time is over. Cheap; call before matching."""
        self.index.expire(now)

    def listen(self, listener: PrefixListener) -> None:
        """Notify `listener` of all changes from now on."""
        self._listeners.append(listener)

    def move_to(self, index: BlockIndex) -> None:
        """Go on with an index that is empty. Raises TypeError unless there is a plain one now."""
        if not isinstance(self.index, PlainIndex):
            raise TypeError("only a plain index can be moved")
        tiers: tuple[Tier, ...] = ("file", "memory")
        for sequence in self._nodes.values():
            for tier in tiers:
                index.tell(sequence.slot, self.index.held(sequence.slot, tier), tier)
        self.index = index

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    def match_all(
        self, digests: Sequence[bytes], *, expected: bool = True
    ) -> dict[str, CachedPrefix]:
        """Return how much of a prompt's blocks each node is believed to hold, of those that hold at
        least the first one.

        Without `expected`, only what nodes have said themselves counts.
        """
        found = self.index.match_all(digests, expected=expected)
        named = ((self._names[slot], prefix) for slot, prefix in found.items())
        return {node: prefix for node, prefix in named if node is not None}

    def knows(self, digest: bytes) -> bool:
        """Return whether any node has said that it holds this block."""
        return self.index.knows(digest)

    def wants_snapshot(self, node: str) -> bool:
        """Return whether a node should send a snapshot: something that it said is
        missing."""
        sequence = self._nodes.get(node)
        return sequence is not None and sequence.wants_snapshot

    def num_digests(self, node: str) -> int:
        """Return blocks that `node` is believed to hold, expectations not counted."""
        sequence = self._nodes.get(node)
        return self.index.count(sequence.slot) if sequence else 0

    def slot(self, node: str) -> int | None:
        """Return the number that stands for a node; None when there are too many."""
        sequence = self._sequence(node)
        return None if sequence is None else sequence.slot

    # ── one node's sequence ─────────────────────────────────────────────────────────────────────

    def _sequence(self, node: str) -> _Sequence | None:
        """Return the node's sequence, made on first sight; None when there are too many nodes."""
        if (sequence := self._nodes.get(node)) is not None:
            return sequence
        if len(self._nodes) >= self.limits.max_nodes:
            return None
        if self._free:
            slot = self._free.pop()
            self._names[slot] = node
        else:
            slot = len(self._names)
            self._names.append(node)
        sequence = self._nodes[node] = _Sequence(node, slot)
        return sequence

    def _restart(self, sequence: _Sequence, incarnation: int) -> None:
        """Start a node's new life, empty at seq 0; what its old life held is gone."""
        self._clear(sequence)
        sequence.incarnation = incarnation
        sequence.applied = sequence.known = 0
        sequence.has_base = False
        sequence.pending.clear()

    def _hold_back(self, sequence: _Sequence, delta: PrefixDelta) -> None:
        sequence.pending[delta.seq] = delta
        if len(sequence.pending) > self.limits.max_pending:
            # The newest survive: a snapshot will overtake the oldest first.
            del sequence.pending[min(sequence.pending)]

    def _apply_snapshot(self, sequence: _Sequence, snapshot: PrefixSnapshot) -> None:
        if sequence.has_base and snapshot.seq < sequence.applied:
            return
        self._clear(sequence)
        self._tell(sequence, snapshot.file, "file")
        self._tell(sequence, snapshot.memory, "memory")
        sequence.applied, sequence.has_base = snapshot.seq, True

    def _catch_up(self, sequence: _Sequence) -> None:
        """Apply what follows without a gap, and drop what has been overtaken."""
        while (delta := sequence.pending.pop(sequence.applied + 1, None)) is not None:
            self._tell(sequence, delta.sealed, "memory")
            self._tell(sequence, delta.filed, "file")
            self._forget(sequence, delta.evicted)
            sequence.applied = delta.seq
            sequence.has_base = True  # seq 1 follows the empty start
        for seq in [seq for seq in sequence.pending if seq <= sequence.applied]:
            del sequence.pending[seq]

    def _tell(self, sequence: _Sequence, digests: Sequence[bytes], tier: Tier) -> None:
        if digests:
            self.index.tell(sequence.slot, digests, tier)
        for listener in self._listeners:
            listener.told(sequence.node, digests)

    def _forget(self, sequence: _Sequence, digests: Sequence[bytes]) -> None:
        self.index.forget(sequence.slot, digests)
        for listener in self._listeners:
            listener.forgotten(sequence.node, digests)

    def _clear(self, sequence: _Sequence) -> None:
        if self.index.count(sequence.slot):
            self.index.clear(sequence.slot)
        for listener in self._listeners:
            listener.cleared(sequence.node)
