"""Paged KV bookkeeping: who uses which block, and what each full block holds. Integers only.

The rules of the house:

- A block is in use (references > 0) or idle (references == 0), never both.
- A block whose 64 tokens are computed may be *sealed* under its digest. From then on its content
  does not change, so any number of sequences may share it.
- An idle sealed block keeps its content until it is handed out again, least recently used first:
  the idle list *is* the prefix cache. Idle blocks without a digest are handed out before those.
- A *pinned* idle block is handed out after all others, even those used later, for a time.
- A digest is sealed on at most one block. A second block of the same content stays unsealed.

A transferred block enters as any other: `allocate(1)`, write its bytes, `seal`, `release`. Nothing
can match it before it is sealed.

Digests name tokens, not bytes: BLAKE2b-128, keyed by the tenant's cache key so that no tenant can
hit or time another's prefixes, chained so that a digest stands for the whole prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np

from skerry_core.batch import Int32
from skerry_core.config import BLOCK_SIZE
from skerry_core.pins import PIN_SHARE, Pin, PinChange, Pins

DIGEST_SIZE = 16  # bytes

Digest = bytes
"""Name of a full block: what it holds and what stands before it."""


class OutOfBlocks(Exception):
    """Fewer idle blocks than requested. Never leaves the scheduler."""


def root_digest(model_key: bytes, cache_key: bytes) -> Digest:
    """Return the parent of a sequence's first block. `model_key` names the model and its tokenizer.

    `cache_key` is at most 64 bytes, a limit of BLAKE2b; ValueError beyond.
    """
    return blake2b(
        model_key, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv root"
    ).digest()


def chain_digests(parent: Digest, token_ids: Int32, cache_key: bytes) -> list[Digest]:
    """Return digests of the full blocks of `token_ids` i32[n], the first of which follows
    `parent`."""
    data = np.ascontiguousarray(token_ids, dtype="<u4").tobytes()
    block_bytes = 4 * BLOCK_SIZE
    digests = []
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        block = parent + data[start : start + block_bytes]
        parent = blake2b(
            block, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv block"
        ).digest()
        digests.append(parent)
    return digests


def tail_digest(parent: Digest, token_ids: Int32, cache_key: bytes) -> Digest:
    """Name of an open block that holds `token_ids` i32[n], n < 64, after `parent`."""
    data = parent + np.ascontiguousarray(token_ids, dtype="<u4").tobytes()
    return blake2b(data, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv tail").digest()


def blocks_for(num_tokens: int) -> int:
    """Return blocks that hold the KV of `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """Digests that became available, and that are no longer, since the last call."""

    sealed: tuple[Digest, ...]
    evicted: tuple[Digest, ...]


class ChangeLog:
    """Which digests came and went since the last drain, net: what did both is not there."""

    def __init__(self) -> None:
        self._is_here: dict[Digest, bool] = {}

    def note(self, digest: Digest, *, is_here: bool) -> None:
        """Keep that a digest came or went."""
        if self._is_here.get(digest) is (not is_here):
            del self._is_here[digest]  # back to what the last drain reported
        else:
            self._is_here[digest] = is_here

    def drain(self) -> CacheChanges:
        """Return the changes since the last drain, and forget them."""
        changes, self._is_here = self._is_here, {}
        return CacheChanges(
            tuple(digest for digest, is_here in changes.items() if is_here),
            tuple(digest for digest, is_here in changes.items() if not is_here),
        )


class BlockPool:
    """References, idle blocks and the prefix cache of `num_blocks` blocks.

    `evicting` is called with each block, digest and pin just before it is forgotten, while nothing
    has been written over its content yet. `pin_share` (0 to 1) of the blocks a tenant may pin.
    """

    def __init__(
        self,
        num_blocks: int,
        evicting: Callable[[int, Digest, Pin | None], None] | None = None,
        *,
        pin_share: float = PIN_SHARE,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self._refs = [0] * num_blocks
        self._digest: list[Digest | None] = [None] * num_blocks  # None: not sealed
        self._sealed: dict[Digest, int] = {}
        self._idle = OrderedDict.fromkeys(range(num_blocks))  # next to be handed out first
        self._idle_pinned: OrderedDict[int, None] = OrderedDict()  # they follow `_idle`
        self._pins = Pins(num_blocks, pin_share)
        self._pinned = self._pins.blocks
        self._idle_sealed = 0
        # Net, so that it never outgrows the pool.
        self._changes = ChangeLog()
        self._evicting = evicting

    @property
    def num_blocks(self) -> int:
        return len(self._refs)

    @property
    def num_idle(self) -> int:
        """Return blocks that `allocate` can hand out: free and cached ones."""
        return len(self._idle) + len(self._idle_pinned)

    @property
    def num_cached(self) -> int:
        """Return idle blocks that still hold a prefix."""
        return self._idle_sealed

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_idle

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    def allocate(self, n: int) -> list[int]:
        """Take n writable blocks, forgetting the oldest idle content. All or nothing.

        Raises OutOfBlocks.
        """
        if n > self.num_idle:
            raise OutOfBlocks(f"{n} blocks needed, {self.num_idle} idle")
        blocks = [self._next_idle() for _ in range(n)]
        for block in blocks:
            self._refs[block] = 1
            digest = self._digest[block]
            if digest is not None:
                if self._evicting is not None:
                    self._evicting(block, digest, self.pin_of(block))
                if block in self._pinned:
                    self._pins.remove(block)
                self._idle_sealed -= 1
                self._digest[block] = None
                del self._sealed[digest]
                self._changes.note(digest, is_here=False)
        return blocks

    def _next_idle(self) -> int:
        if self._idle:
            return self._idle.popitem(last=False)[0]
        return self._idle_pinned.popitem(last=False)[0]

    def match(self, digests: Iterable[Digest]) -> int:
        """Return how many of the leading digests are sealed here. Takes no reference."""
        count = 0
        for digest in digests:
            if digest not in self._sealed:
                break
            count += 1
        return count

    def acquire(self, digests: Sequence[Digest]) -> list[int]:
        """Return blocks of the longest sealed run of leading digests, each with a reference
        more."""
        blocks = [self._sealed[digest] for digest in digests[: self.match(digests)]]
        for block in blocks:
            if self._refs[block] == 0:
                del (self._idle_pinned if block in self._pinned else self._idle)[block]
                self._idle_sealed -= 1
            self._refs[block] += 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference of each block of a sequence, listed from its start.

        The end of a sequence is forgotten before its beginning: a prefix without its head cannot
        be matched.
        """
        for block in reversed(blocks):
            if self._refs[block] < 1:
                raise ValueError(f"block {block} is not in use")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if block in self._pinned:
                    self._idle_pinned[block] = None
                else:
                    self._idle[block] = None
                if self._digest[block] is None:
                    self._idle.move_to_end(block, last=False)
                else:
                    self._idle_sealed += 1

    def seal(self, block: int, digest: Digest) -> bool:
        """Name the final content of a block in use; whether it is now the one that is matched.

        False when another block holds the digest already: this one then stays unsealed.
        """
        if self._refs[block] < 1:
            raise ValueError(f"block {block} is not in use")
        if self._digest[block] is not None:
            raise ValueError(f"block {block} is sealed already")
        if digest in self._sealed:
            return False
        self._digest[block] = digest
        self._sealed[digest] = block
        self._changes.note(digest, is_here=True)
        return True

    def pin(self, digests: Iterable[Digest], ends: Sequence[float], owner: bytes) -> PinChange:
        """Pin the blocks of the leading sealed digests, in use or idle, each until its end on
        `expire_pins`'s clock, as far as `owner` (a tenant's cache key) may."""
        blocks: list[int] = []
        for digest in digests:
            if (block := self._sealed.get(digest)) is None:
                break
            blocks.append(block)
        change = self._pins.add(blocks, ends, owner)
        for place in change.new:
            if blocks[place] in self._idle:
                del self._idle[blocks[place]]
                self._idle_pinned[blocks[place]] = None
        self._unpinned(block for block in change.lapsed if block not in self._pinned)
        return change

    def pin_of(self, block: int) -> Pin | None:
        """Return a block's pin, of several that which lasts longest."""
        return self._pins.of(block) if block in self._pinned else None

    def expire_pins(self, now: float) -> None:
        """Count blocks whose pin is over as used just now."""
        if now < self._pins.next_end:
            return
        self._unpinned(self._pins.expire(now))

    def _unpinned(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self._refs[block] == 0:
                del self._idle_pinned[block]
                self._idle[block] = None

    def cached_blocks(self) -> Iterator[tuple[int, Digest]]:
        """Yield idle blocks that hold a prefix, and what; the last to be forgotten first."""
        for block in chain(reversed(self._idle_pinned), reversed(self._idle)):
            if (digest := self._digest[block]) is not None:
                yield block, digest

    def drain_changes(self) -> CacheChanges:
        """Return net changes of the sealed digests since the last call, for a prefix directory."""
        return self._changes.drain()
