"""What nodes report of the KV blocks that they hold: numbered changes, and now and then everything.

Each node numbers its changes: `PrefixDelta(incarnation, seq, …)` with seq 1, 2, 3 … since it
started (empty); a `PrefixSnapshot` is of everything as of a seq.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Literal

from msgspec import Meta, Struct

Digest = Annotated[bytes, Meta(min_length=1, max_length=32)]
Tier = Literal["memory", "file"]

MAX_DELTA = 65_536  # digests in one delta: 4 M tokens of 64-token blocks
MAX_SNAPSHOT = 1_048_576  # digests in one snapshot


class PrefixDelta(Struct, frozen=True, kw_only=True, tag="prefix_delta"):
    """Changes since `seq - 1`. `sealed` and `filed` also move a digest between tiers."""

    node: Annotated[str, Meta(max_length=128)]
    incarnation: Annotated[int, Meta(ge=0)]
    seq: Annotated[int, Meta(ge=1)]
    sealed: Annotated[tuple[Digest, ...], Meta(max_length=MAX_DELTA)] = ()  # now in memory
    filed: Annotated[tuple[Digest, ...], Meta(max_length=MAX_DELTA)] = ()  # now in the file tier
    evicted: Annotated[tuple[Digest, ...], Meta(max_length=MAX_DELTA)] = ()  # now gone


class PrefixSnapshot(Struct, frozen=True, kw_only=True, tag="prefix_snapshot"):
    """Everything the node holds as of `seq`."""

    node: Annotated[str, Meta(max_length=128)]
    incarnation: Annotated[int, Meta(ge=0)]
    seq: Annotated[int, Meta(ge=0)]
    memory: Annotated[tuple[Digest, ...], Meta(max_length=MAX_SNAPSHOT)] = ()
    file: Annotated[tuple[Digest, ...], Meta(max_length=MAX_SNAPSHOT)] = ()


class PrefixPublisher:
    """The node's side: collects changes, numbers them, and can report everything at once.

    When more than `max_changes` wait to be sent, since none fetches them, they are dropped and a
    number is left out: whoever listens later misses it, and wants a snapshot.
    """

    def __init__(self, node: str, incarnation: int, *, max_changes: int = MAX_DELTA) -> None:
        self._node, self._incarnation = node, incarnation
        self._max_changes = max_changes
        self._seq = 0
        self._held: dict[bytes, Tier] = {}
        self._changed: dict[bytes, None] = {}  # in order; the final tier is what counts

    def sealed(self, digests: Iterable[bytes], tier: Tier = "memory") -> None:
        """Note that the node now holds these blocks, in this tier."""
        for digest in digests:
            self._held[digest] = tier
            self._change(digest)

    def evicted(self, digests: Iterable[bytes]) -> None:
        """Note that the node no longer holds these blocks, in no tier."""
        for digest in digests:
            self._held.pop(digest, None)
            self._change(digest)

    def _change(self, digest: bytes) -> None:
        self._changed[digest] = None
        if len(self._changed) > self._max_changes:
            self._changed.clear()
            self._seq += 1

    def tier(self, digest: bytes) -> Tier | None:
        """Return where the node last said it holds the block."""
        return self._held.get(digest)

    def delta(self) -> PrefixDelta | None:
        """Return the changes since the last delta (at most `MAX_DELTA`; call again), or None."""
        if not self._changed:
            return None
        digests = list(islice(self._changed, MAX_DELTA))
        for digest in digests:
            del self._changed[digest]
        self._seq += 1
        return PrefixDelta(
            node=self._node,
            incarnation=self._incarnation,
            seq=self._seq,
            sealed=tuple(d for d in digests if self._held.get(d) == "memory"),
            filed=tuple(d for d in digests if self._held.get(d) == "file"),
            evicted=tuple(d for d in digests if d not in self._held),
        )

    def snapshot(self) -> PrefixSnapshot:
        """Return everything held, as of the last delta or later (pending changes follow as deltas).

        Beyond `MAX_SNAPSHOT` blocks of a tier the newest are reported.
        """
        memory = [d for d, tier in self._held.items() if tier == "memory"]
        file = [d for d, tier in self._held.items() if tier == "file"]
        return PrefixSnapshot(
            node=self._node,
            incarnation=self._incarnation,
            seq=self._seq,
            memory=tuple(memory[-MAX_SNAPSHOT:]),
            file=tuple(file[-MAX_SNAPSHOT:]),
        )
