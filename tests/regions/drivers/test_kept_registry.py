"""A registry that is away when a process starts: its last word was kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry_regions.drivers.kept_registry import KEEP_SECONDS, KeptRegistry
from skerry_regions.registry import LEASE_SECONDS, Member, RegistryUnavailable

NODE = Member(id="n", kind="node", region="fra", address="10.0.0.1:1", state="ready", model="m")
EDGE = Member(id="e", kind="edge", region="fra", address="http://10.0.0.2", state="ready")


class Store:
    """A registry in memory, which can be away."""

    def __init__(self) -> None:
        self.now: list[Member] | None = None

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        self.now = [*(self.now or ()), member]
        return member.incarnation

    def withdraw(self, member_id: str, incarnation: int) -> None:
        self.now = [each for each in self.now or () if each.id != member_id]

    def members(self) -> list[Member]:
        if self.now is None:
            raise RegistryUnavailable("away")
        return self.now

    def close(self) -> None:
        self.now = None


def test_who_starts_while_it_is_away_has_its_last_word(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "members.json"
    first = KeptRegistry(store, path)
    with pytest.raises(RegistryUnavailable):
        first.members()
    first.announce(NODE)
    first.announce(EDGE)
    assert first.members() == [NODE, EDGE]
    first.close()
    with pytest.raises(RegistryUnavailable):
        first.members()  # it knows them itself
    second = KeptRegistry(store, path)
    assert second.members() == [NODE, EDGE]
    with pytest.raises(RegistryUnavailable):
        second.members()  # its directory goes on with the last reading
    store.now = [EDGE]
    assert second.members() == [EDGE]
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_is_written_when_somebody_moves_and_not_too_often(tmp_path: Path) -> None:
    store, path, now = Store(), tmp_path / "members.json", 0.0
    kept = KeptRegistry(store, path, lambda: now)
    store.now = [NODE]
    kept.members()
    written = path.stat().st_ino
    now += KEEP_SECONDS
    busy = replace(NODE, streams=7)
    starting = Member(id="s", kind="node", region="fra", state="starting")
    store.now = [busy, starting]
    kept.members()
    assert path.stat().st_ino == written
    store.now = [NODE, EDGE]
    kept.members()
    moved = path.stat().st_ino
    assert moved != written
    store.now = []
    kept.members()
    assert path.stat().st_ino == moved, "but a moment ago"
    now += KEEP_SECONDS
    kept.members()
    assert path.stat().st_ino != moved


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"version": 2}', b'{"members": [{}]}'])
def test_a_file_that_cannot_be_read_has_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "members.json"
    path.write_bytes(content)
    with pytest.raises(RegistryUnavailable):
        KeptRegistry(Store(), path).members()
