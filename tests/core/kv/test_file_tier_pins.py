"""Pinned blocks of the file tier: kept for their time, bounded by tenant, gone with it."""

from __future__ import annotations

from pathlib import Path

from tests.core.kv.slots import BLOCK, block, digest

from skerry_core.kv.file_tier import PAGE, FilePin, FileTier


class Wall:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def pinning_tier(path: Path, clock: Wall, **options: float) -> FileTier:
    """Eight slots, of which a tenant may pin two, and all six."""
    capacity = 2 * PAGE + 8 * (2 * PAGE + 64)
    return FileTier(
        path, block_bytes=BLOCK, capacity_bytes=capacity, identity=b"b", wall_clock=clock, **options
    )


def put(tier: FileTier, *numbers: int, pin: FilePin | None = None) -> None:
    for number in numbers:
        tier.put(digest(number), block(number), pin)


def held(tier: FileTier, *numbers: int) -> set[int]:
    return {number for number in numbers if digest(number) in tier}


def test_pinned_blocks_stay_for_their_time_across_restarts(tmp_path: Path) -> None:
    path, clock = tmp_path / "kv", Wall()
    tier = pinning_tier(path, clock)
    put(tier, 1, 2, pin=(300.0, b"a"))
    for life in range(1, 4):
        put(tier, *range(100 * life, 100 * life + 20))
        assert held(tier, 1, 2) == {1, 2}
        assert len(tier) == 8
        tier.close()
        clock.now += 99.0
        tier = pinning_tier(path, clock)
    assert tier.get(digest(1)) == block(1)
    assert tier.touch(digest(2), (10.0, b"a"))  # never shortened
    clock.now += 2.0
    put(tier, *range(20, 21))  # a little later than the others they are as any
    assert held(tier, 1, 2) == {1, 2}
    assert tier.touch(digest(2), (300.0, b"a"))
    clock.now += 2.0
    put(tier, *range(30, 50))
    assert held(tier, 1, 2) == {2}
    tier.close()


def test_a_tenants_share_of_a_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "kv", Wall()
    tier = pinning_tier(path, clock)
    for owner, numbers in ((b"a", (1, 2, 3)), (b"b", (4, 5)), (b"c", (6, 7)), (b"d", (8,))):
        put(tier, *numbers, pin=(300.0, owner))
    put(tier, *range(20, 40))  # 1 lapsed for 3, and the last quarter is everybody's
    assert held(tier, *range(1, 9)) == {2, 3, 4, 5, 6, 7}
    tier.close()
    tier = pinning_tier(path, clock)
    put(tier, *range(40, 60))
    assert held(tier, *range(1, 9)) == {2, 3, 4, 5, 6, 7}
    tier.close()


def test_a_file_whose_slots_are_all_pinned_still_takes_blocks(tmp_path: Path) -> None:
    tier = pinning_tier(tmp_path / "kv", Wall(), pin_share=1.0)
    put(tier, *range(8), pin=(300.0, b"a"))
    put(tier, 8, 9)  # the first in place of a pinned one, the second of the first
    assert held(tier, *range(10)) == {1, 2, 3, 4, 5, 6, 7, 9}
    tier.close()


def test_a_file_without_pins_is_taken_over(tmp_path: Path) -> None:
    """Version 2, as the versions before wrote it: entries of 40 bytes, then zeros."""
    path, clock = tmp_path / "kv", Wall()
    tier = pinning_tier(path, clock)
    put(tier, 1, 2)
    tier.close()
    data = bytearray(path.read_bytes())
    assert data[8:12] == (3).to_bytes(4, "little")
    data[8:12] = (2).to_bytes(4, "little")
    for slot in range(8):
        entry = PAGE + 64 * slot
        assert data[entry + 40 : entry + 64] == bytes(24)
    path.write_bytes(data)
    tier = pinning_tier(path, clock)
    assert held(tier, 1, 2) == {1, 2}
    assert tier.get(digest(1)) == block(1)
    tier.close()
    assert path.read_bytes()[8:12] == (3).to_bytes(4, "little")


def test_a_time_that_no_pin_has_is_none(tmp_path: Path) -> None:
    """A clock that was set back, or a damaged entry, keeps nothing for ever."""
    path, clock = tmp_path / "kv", Wall()
    clock.now = 1e9
    tier = pinning_tier(path, clock)
    put(tier, 1, pin=(1e12, b"a"))  # a day at most
    tier.close()
    clock.now = 1000.0
    tier = pinning_tier(path, clock)
    put(tier, *range(20, 30))
    assert held(tier, 1) == set()
    tier.close()
