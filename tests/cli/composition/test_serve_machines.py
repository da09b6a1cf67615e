"""The listener for machines: its death is noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.regions.control.joining import Platform, platform

from skerry_cli.composition.serve_machines import JoinOptions, _credentials, machines
from skerry_cli.home.keys import keep_private
from skerry_cli.home.state import Config, Home, write_config
from skerry_edge.gate.oidc.issuers import load_issuers
from skerry_edge.http.server import listen
from skerry_edge.limits import Limits
from skerry_regions.registry import Member


class Broken:
    """A registry with a bug."""

    def announce(self, member: Member, lease_seconds: float = 3.0) -> int:
        raise LookupError("a bug")

    def withdraw(self, member_id: str, incarnation: int) -> None: ...

    def members(self) -> list[Member]:
        return []

    def close(self) -> None: ...


async def served_until_lost(control: Platform, home: Home) -> None:
    lost = asyncio.Event()
    listener = listen("127.0.0.1", 0, Limits())
    async with machines(
        JoinOptions(host="127.0.0.1", port=0), home, listener, control.store, Broken(),
        control.joined_machines, control.hosts, b"s" * 32, frozenset(), lost=lost.set,
    ):  # fmt: skip
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


def test_joined_edges_get_whose_logins_count(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    write_config(home, Config(account_id="a" * 32, api_token="unused"))
    keep_private(home.secret, b"s" * 32)
    without = _credentials(home)
    assert without.issuers == b""
    home.issuers.write_text(
        "issuers: [{name: acme, issuer: 'https://x.test', audience: [a],"
        " grants: [{account: platform, role: operator}]}]"
    )
    found = _credentials(home)
    assert found.digest != without.digest
    assert found.issuers is not None
    joined = Home(tmp_path / "joined")
    joined.create()
    keep_private(joined.issuers, found.issuers)
    (issuer,) = load_issuers(joined.issuers, "")
    (grant,) = issuer.grants
    assert (grant.account, grant.role) == ("a" * 32, "operator"), "whose account it is, they know"
    home.issuers.write_text("issuers: [{}]")
    assert _credentials(home).issuers is None, "they keep what they have"
