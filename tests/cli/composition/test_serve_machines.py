"""The listener for machines: its death is noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.regions.control.joining import Platform, platform

from skerry_cli.composition.serve_machines import machines
from skerry_cli.home.state import Home
from skerry_edge.http.server import listen
from skerry_edge.limits import Limits
from skerry_regions.registry import Member


class Broken:
    """A registry with a bug."""

    def announce(self, member: Member, lease_seconds: float = 3.0) -> None:
        raise LookupError("a bug")

    def withdraw(self, member_id: str, incarnation: int) -> None: ...

    def members(self) -> list[Member]:
        return []

    def close(self) -> None: ...


async def served_until_lost(control: Platform, home: Home) -> None:
    lost = asyncio.Event()
    listener = listen("127.0.0.1", 0, Limits())
    async with machines(
        home, listener, control.store, Broken(), control.joined_machines, b"s" * 32, lost.set
    ):
        async with asyncio.timeout(60):
            await lost.wait()


def test_a_bug_that_ends_it_is_told_at_once_and_raised(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    with platform(tmp_path) as control:
        control.joined("m").close()
        [machine] = control.machines.all()
        control.machines.revoke(machine.id, actor="test")
        with pytest.raises(LookupError, match="a bug"):
            asyncio.run(served_until_lost(control, home))
