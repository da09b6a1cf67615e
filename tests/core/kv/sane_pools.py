"""The rules that a pool of blocks keeps to at any time."""

from __future__ import annotations

from skerry_core.blocks import BlockPool


def check_pool(pool: BlockPool) -> None:
    """Assert that the rules of the house hold: O(num_blocks)."""
    idle = {block for block, refs in enumerate(pool._refs) if refs == 0}
    assert min(pool._refs) >= 0
    assert idle == {*pool._idle, *pool._idle_pinned}
    named = {d: block for block, d in enumerate(pool._digest) if d is not None}
    assert named == pool._sealed
    assert all(block in pool._pinned for block in pool._idle_pinned)
    cached = [pool._digest[b] is not None for b in (*pool._idle, *pool._idle_pinned)]
    assert sum(cached) == pool._idle_sealed
    assert cached == sorted(cached), "idle blocks without a digest come before cached ones"
