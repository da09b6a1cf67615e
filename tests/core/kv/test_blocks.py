from __future__ import annotations

from hashlib import blake2b
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.kv.sane_pools import check_pool
from tests.properties import examples

from skerry_core.blocks import (
    BlockPool,
    CacheChanges,
    OutOfBlocks,
    blocks_for,
    chain_digests,
    root_digest,
)
from skerry_core.config import BLOCK_SIZE
from skerry_core.pins import PinChange

DIGESTS = [bytes([i]) * 16 for i in range(6)]


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against a plain model: lists of held blocks, and one list in order of last use."""

    @initialize(num_blocks=st.integers(1, 18))
    def create(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.held: list[list[int]] = []
        self.cached: list[bytes] = []  # idle and sealed, least recently used first
        self.cached_pinned: list[bytes] = []  # and those that go after all others
        self.pins: dict[bytes, list[bytes]] = {b"a": [], b"b": []}  # by owner, next to lapse first
        self.digest: dict[int, bytes] = {}  # of sealed blocks
        self.published: set[bytes] = set()

    def references(self, block: int) -> int:
        return sum(blocks.count(block) for blocks in self.held)

    def pinned(self) -> set[bytes]:
        return {digest for own in self.pins.values() for digest in own}

    def num_idle(self) -> int:
        return self.pool.num_blocks - len({b for blocks in self.held for b in blocks})

    @rule(n=st.integers(0, 9))
    def allocate(self, n: int) -> None:
        idle = self.num_idle()
        if n > idle:
            with pytest.raises(OutOfBlocks, match=f"^{n} blocks needed, {idle} idle$"):
                self.pool.allocate(n)
            return
        num_free = idle - len(self.cached) - len(self.cached_pinned)
        num_forgotten = max(0, n - num_free)
        forgotten = [*self.cached, *self.cached_pinned][:num_forgotten]
        self.cached = self.cached[num_forgotten:]
        self.cached_pinned = [each for each in self.cached_pinned if each not in forgotten]
        for owner, own in self.pins.items():
            self.pins[owner] = [digest for digest in own if digest not in forgotten]
        blocks = self.pool.allocate(n)
        assert len(set(blocks)) == n
        assert all(self.references(block) == 0 for block in blocks)
        assert {self.digest.pop(b) for b in blocks if b in self.digest} == set(forgotten)
        self.held.append(blocks)

    @rule(digests=st.lists(st.sampled_from(DIGESTS), max_size=4, unique=True))
    def acquire(self, digests: list[bytes]) -> None:
        by_digest = {digest: block for block, digest in self.digest.items()}
        expected = []
        for digest in digests:
            if digest not in by_digest:
                break
            expected.append(by_digest[digest])
            for idle in (self.cached, self.cached_pinned):
                if digest in idle:
                    idle.remove(digest)
        assert self.pool.match(digests) == len(expected)
        assert self.pool.acquire(digests) == expected
        self.held.append(expected)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), digest=st.sampled_from(DIGESTS))
    def seal(self, data: st.DataObject, digest: bytes) -> None:
        block = data.draw(st.sampled_from([b for blocks in self.held for b in blocks]))
        if block in self.digest:
            with pytest.raises(ValueError, match="sealed already"):
                self.pool.seal(block, digest)
        elif self.pool.seal(block, digest):
            assert digest not in self.digest.values()
            self.digest[block] = digest
        else:
            assert digest in self.digest.values()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(blocks)
        for block in reversed(blocks):
            if self.references(block) == 0 and block in self.digest:
                digest = self.digest[block]
                (self.cached_pinned if digest in self.pinned() else self.cached).append(digest)

    @rule(
        digests=st.lists(st.sampled_from(DIGESTS), max_size=4, unique=True),
        owner=st.sampled_from([b"a", b"b"]),
    )
    def pin(self, digests: list[bytes], owner: bytes) -> None:
        most = self.pool.num_blocks // 4
        wanted = list(takewhile(set(self.digest.values()).__contains__, digests))[:most]
        older = [each for each in self.pins[owner] if each not in wanted]
        own = [each for each in wanted if each in self.pins[owner]]
        new, lapsed, pinned = [], [], []
        for place, digest in enumerate(wanted):
            if digest not in own:
                for each in list(older):
                    if self.has_room(owner, digest, most):
                        break
                    older.remove(each)
                    self.pins[owner].remove(each)
                    lapsed.append(each)
                    if each in self.cached_pinned and each not in self.pinned():
                        self.cached_pinned.remove(each)
                        self.cached.append(each)
                if not self.has_room(owner, digest, most):
                    break
                self.pins[owner].append(digest)
                new.append(place)
                if digest in self.cached:
                    self.cached.remove(digest)
                    self.cached_pinned.append(digest)
            pinned.append(digest)
        rest = [each for each in own if each not in pinned]
        self.pins[owner] = [*older, *reversed(rest), *reversed(pinned)]
        block_of = {digest: block for block, digest in self.digest.items()}
        expected = PinChange(len(pinned), tuple(new), tuple(block_of[each] for each in lapsed))
        assert self.pool.pin(digests, [1.0] * len(digests), owner) == expected

    def has_room(self, owner: bytes, digest: bytes, most: int) -> bool:
        in_all = digest in self.pinned() or len(self.pinned()) < self.pool.num_blocks * 3 // 4
        return in_all and len(self.pins[owner]) < most

    @rule()
    def expire_pins(self) -> None:
        self.pool.expire_pins(0.9)
        assert self.pool.num_pinned == len(self.pinned())
        self.pool.expire_pins(1.0)
        block_of = {digest: block for block, digest in self.digest.items()}
        self.cached += sorted(self.cached_pinned, key=block_of.__getitem__)
        self.cached_pinned = []
        self.pins = {b"a": [], b"b": []}

    @rule()
    def drain(self) -> None:
        changes = self.pool.drain_changes()
        assert self.published.isdisjoint(changes.sealed)
        assert self.published.issuperset(changes.evicted)
        self.published = self.published.union(changes.sealed).difference(changes.evicted)
        assert self.published == set(self.pool._sealed)

    @invariant()
    def agrees(self) -> None:
        check_pool(self.pool)
        assert self.pool.num_idle == self.num_idle()
        assert self.pool.num_cached == len(self.cached) + len(self.cached_pinned)
        assert self.pool.num_pinned == len(self.pinned())
        assert self.pool.num_used == self.pool.num_blocks - self.num_idle()
        assert set(self.pool._sealed) == set(self.digest.values())


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_released_sequence_is_forgotten_from_its_end() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, digest in zip(blocks, DIGESTS, strict=False):
        pool.seal(block, digest)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.match(DIGESTS) == 2


def test_a_block_is_matched_only_once_sealed_and_then_as_any_other() -> None:
    pool = BlockPool(2)
    staged = pool.allocate(1)
    assert pool.acquire(DIGESTS[:1]) == []
    assert pool.seal(staged[0], DIGESTS[0])
    pool.release(staged)
    assert pool.acquire(DIGESTS[:1]) == staged


def test_changes_that_cancel_out_are_not_told() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.seal(block, DIGESTS[0])
    pool.release([block])
    pool.allocate(1)
    assert pool.drain_changes() == CacheChanges((), ())


def test_releasing_or_sealing_an_idle_block_is_refused() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="not in use"):
        pool.release([0])
    with pytest.raises(ValueError, match="not in use"):
        pool.seal(0, DIGESTS[0])
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


# --- digests -------------------------------------------------------------------------------------


def chain(tokens: list[int], *, model: bytes = b"model", key: bytes = b"tenant") -> list[bytes]:
    return chain_digests(root_digest(model, key), np.array(tokens, np.int32), key)


def test_digests_are_keyed_blake2b_over_parent_and_little_endian_tokens() -> None:
    key = b"tenant"
    root = blake2b(b"model", digest_size=16, key=key, person=b"skerry kv root").digest()
    tokens = b"".join(i.to_bytes(4, "little") for i in range(64))
    first = blake2b(root + tokens, digest_size=16, key=key, person=b"skerry kv block").digest()
    assert chain(list(range(64))) == [first]
    assert first.hex() == "f75ab88cd1fe03cf39408728071f3b19"  # everywhere, for ever


def test_only_full_blocks_have_digests() -> None:
    assert chain([]) == []
    assert chain(list(range(63))) == []
    assert len(chain(list(range(191)))) == 2


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=128, max_size=256),
    at=st.integers(0, 127),
)
def test_a_digest_stands_for_its_whole_prefix(tokens: list[int], at: int) -> None:
    digests = chain(tokens)
    changed = [*tokens]
    changed[at] ^= 1
    same = [a == b for a, b in zip(digests, chain(changed), strict=True)]
    assert same == [i < at // BLOCK_SIZE for i in range(len(digests))]


def test_tenants_and_models_share_no_digest() -> None:
    tokens = list(range(64))
    variants = [
        chain(tokens),
        chain(tokens, key=b"other tenant"),
        chain(tokens, key=b""),
        chain(tokens, model=b"other model"),
    ]
    assert len({digest for digests in variants for digest in digests}) == 4


def test_a_chain_goes_on_from_any_of_its_blocks() -> None:
    tokens = np.arange(256, dtype=np.int32)
    root = root_digest(b"model", b"tenant")
    whole = chain_digests(root, tokens, b"tenant")
    head = chain_digests(root, tokens[:128], b"tenant")
    assert whole == head + chain_digests(head[-1], tokens[128:], b"tenant")


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks
