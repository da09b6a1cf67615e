"""The file tier: bounded, checked, and never wrong after a crash."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.kv.slots import BLOCK, block, digest
from tests.core.mid_write import kill_in_mid_write
from tests.disks import small_disk
from tests.properties import examples

from skerry_core.kv.file_tier import PAGE, FileTier
from skerry_core.kv.mapped_file import FileTierError


def open_tier(path: Path, *, slots: int = 4, build: str = "b1") -> FileTier:
    capacity = 2 * PAGE + slots * (2 * PAGE + 64)
    return FileTier(path, block_bytes=BLOCK, capacity_bytes=capacity, identity=build.encode() * 100)


class Against(RuleBasedStateMachine):
    """Every operation against a plain ordered dict, restarts included."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(f"/tmp/skerry-file-tier-{os.getpid()}-{id(self)}")
        self.tier = open_tier(self.path)
        self.model: OrderedDict[bytes, bytes] = OrderedDict()
        self.told: set[bytes] = set()  # by `drain_changes`

    @rule(number=st.integers(0, 7))
    def put(self, number: int) -> None:
        self.tier.put(digest(number), block(number))
        if digest(number) not in self.model and len(self.model) == 4:
            self.model.popitem(last=False)
        self.model[digest(number)] = block(number)
        self.model.move_to_end(digest(number))

    @rule(number=st.integers(0, 7))
    def touch(self, number: int) -> None:
        assert self.tier.touch(digest(number)) == (digest(number) in self.model)
        if digest(number) in self.model:
            self.model.move_to_end(digest(number))

    @rule()
    def drain_changes(self) -> None:
        changes = self.tier.drain_changes()
        came, gone = changes.sealed, changes.evicted
        assert set(came) == set(self.model) - self.told
        assert set(gone) == self.told - set(self.model)
        self.told = set(self.model)

    @rule(number=st.integers(0, 7))
    def get(self, number: int) -> None:
        assert self.tier.get(digest(number)) == self.model.get(digest(number))
        if digest(number) in self.model:
            self.model.move_to_end(digest(number))

    @precondition(lambda self: self.model)
    @rule()
    def restart(self) -> None:
        self.tier.close()
        self.tier = open_tier(self.path)
        assert set(self.tier.digests()) == set(self.model)
        self.told = set(self.model)
        for each in self.tier.digests():  # order after a restart is that of the writes
            self.model.move_to_end(each)

    @invariant()
    def same(self) -> None:
        assert self.tier.digests() == list(self.model)

    def teardown(self) -> None:
        self.tier.close()
        self.path.unlink()


TestAgainstAnOrderedDict = Against.TestCase
TestAgainstAnOrderedDict.settings = settings(max_examples=examples(40), deadline=None)


def test_a_flipped_bit_is_a_miss_and_the_slot_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    tier = open_tier(path)
    tier.put(digest(1), block(1))
    tier.close()
    data = bytearray(path.read_bytes())
    position = data.index(block(1)[:64]) + 1000
    data[position] ^= 4
    path.write_bytes(data)
    tier = open_tier(path)
    assert digest(1) in tier
    assert tier.get(digest(1)) is None
    assert digest(1) not in tier
    tier.close()


@pytest.mark.parametrize("change", ["build", "slots"])
def test_a_foreign_file_is_emptied(tmp_path: Path, change: str) -> None:
    path = tmp_path / "kv"
    tier = open_tier(path)
    tier.put(digest(1), block(1))
    tier.close()
    tier = open_tier(path, build="b2") if change == "build" else open_tier(path, slots=9)
    assert tier.digests() == []
    tier.close()


def test_garbage_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    open_tier(path).close()
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))
    tier = open_tier(path)
    assert tier.digests() == []
    tier.close()


def test_two_processes_cannot_share_a_file(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    with pytest.raises(FileTierError, match="another process uses this KV file"):
        open_tier(tmp_path / "kv")
    tier.close()


def test_a_full_disk_is_an_error_of_that_write_only(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk: nothing may be written beyond the table."""
    tier = FileTier(tmp_path / "kv", block_bytes=BLOCK, capacity_bytes=60_000, identity=b"b")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PAGE, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            tier.put(digest(1), block(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(tier) == 0
    tier.put(digest(1), block(1))
    assert tier.get(digest(1)) == block(1)
    tier.close()


def test_a_full_disk_leaves_no_file_that_looks_whole(tmp_path: Path) -> None:
    """Where only a part of the table found room, touching the rest would be a SIGBUS."""
    with small_disk(tmp_path / "disk", 8 * PAGE) as disk:
        path = disk / "kv"
        for _ in range(2):
            with pytest.raises(FileTierError, match=r"cannot reserve .* No space left on device"):
                FileTier(path, block_bytes=64, capacity_bytes=1000 * (PAGE + 64), identity=b"b")
            assert path.stat().st_size == 0
        tier = FileTier(path, block_bytes=64, capacity_bytes=8 * (PAGE + 64), identity=b"b")
        tier.put(digest(1), bytes(64))
        assert tier.get(digest(1)) == bytes(64)
        tier.close()


@pytest.mark.parametrize("capacity", [0, 1000, 3 * PAGE])
def test_a_file_without_room_for_a_block_is_refused(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(FileTierError, match="hold no block of 5000"):
        FileTier(tmp_path / "kv", block_bytes=BLOCK, capacity_bytes=capacity, identity=b"b")


@pytest.mark.parametrize("slots", [1, 3, 64, 65])
def test_the_file_keeps_to_its_capacity(tmp_path: Path, slots: int) -> None:
    capacity = 2 * PAGE + slots * (2 * PAGE + 64)
    tier = open_tier(tmp_path / "kv", slots=slots)
    for number in range(slots + 2):
        tier.put(digest(number), block(number))
    assert len(tier) == slots
    assert (tmp_path / "kv").stat().st_size <= capacity
    tier.close()


WRITER = """
import random, sys
from pathlib import Path
from skerry_core.kv.file_tier import FileTier
tier = FileTier(Path(sys.argv[1]), block_bytes=1 << 20, capacity_bytes=8 << 20, identity=b"b")
print("writing", flush=True)
number = 0
while True:
    number += 1
    tier.put(number.to_bytes(16, "little"), random.Random(number).randbytes(1 << 20))
"""


@pytest.mark.parametrize("seed", range(4))
def test_kill_in_mid_write_leaves_only_whole_blocks(
    tmp_path: Path, seed: int, subprocess_env: dict[str, str]
) -> None:
    path = tmp_path / "kv"
    kill_in_mid_write(WRITER, path, 0.2 + 0.05 * seed, subprocess_env)
    tier = FileTier(path, block_bytes=1 << 20, capacity_bytes=8 << 20, identity=b"b")
    names = tier.digests()
    assert names
    for name in names:
        number = int.from_bytes(name, "little")
        assert tier.get(name) == random.Random(number).randbytes(1 << 20)
    tier.close()
