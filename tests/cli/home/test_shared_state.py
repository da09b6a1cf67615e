"""Which registry and which state a process uses."""

from __future__ import annotations

import asyncio
import shutil
import stat
from pathlib import Path

import pytest
from tests.regions.drivers.nats_server import NatsCluster, NatsServer
from tests.regions.wire.tls_links import Machines

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.shared_state import chosen_state, keep_state, open_registry, opened_state
from skerry_cli.home.state import Home
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.registry import Member, RegistryUnavailable


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def test_the_homes_own_unless_another_is_named(home: Home) -> None:
    registry = open_registry(home, {})
    assert isinstance(registry, SqliteRegistry)
    registry.close()


def test_a_nats_server_by_url(home: Home, tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    registries = [open_registry(home, {"SKERRY_REGISTRY": server.url}) for _ in range(2)]
    member = Member(id="a", kind="node", region="r")
    registries[0].announce(member)
    assert registries[1].members() == [member]
    for registry in registries:
        registry.close()
    server.stop()
    assert not home.registry.exists()


def test_what_is_no_url_of_a_registry(home: Home) -> None:
    with pytest.raises(RegistryUnavailable, match="neither nats://"):
        open_registry(home, {"SKERRY_REGISTRY": "redis://localhost"})


def test_the_state_is_the_homes_own_unless_servers_are_named(home: Home) -> None:
    assert chosen_state(home, {}) is None
    keep_state(home, None)
    keep_state(home, "sqlite")
    assert not home.state_url.exists()
    keep_state(home, "nats://skerry:secret@a?replicas=1")
    assert stat.S_IMODE(home.state_url.stat().st_mode) == 0o600
    kept = chosen_state(home, {})
    assert kept is not None
    assert kept.servers == ("nats://a:4222",)
    named = chosen_state(home, {"SKERRY_STATE": "nats://b"})
    assert named is not None
    assert named.servers == ("nats://b:4222",)
    assert chosen_state(home, {"SKERRY_STATE": "sqlite"}) is None
    keep_state(home, None)
    assert chosen_state(home, {}) == kept
    keep_state(home, "sqlite")
    assert chosen_state(home, {}) is None


def test_what_is_no_state(home: Home) -> None:
    with pytest.raises(CannotStart, match="SKERRY_STATE: state is `sqlite`, or nats://"):
        chosen_state(home, {"SKERRY_STATE": "redis://localhost"})
    home.state_url.write_text("nats://a?replicas=2")
    with pytest.raises(CannotStart, match=f"{home.state_url}: state: replicas is one of 1, 3, 5"):
        chosen_state(home, {})


def test_servers_that_lose_money_stop_a_start_and_the_message_says_what_to_do(
    home: Home, tmp_path: Path
) -> None:
    cluster = NatsCluster(tmp_path / "nats", size=1, sync="2m")

    async def use(url: str) -> None:
        async with opened_state(home, {"SKERRY_STATE": url}, "edge") as state:
            assert state is not None
            assert state.problem == ""

    with pytest.raises(CannotStart, match="Set `sync_interval: always` in") as refused:
        asyncio.run(use(cluster.url))
    assert "loopback" not in str(refused.value)
    asyncio.run(use(f"{cluster.url}&durability=relaxed"))
    cluster.stop()


def test_servers_of_tls_go_by_the_certificates_of_the_home(home: Home, tmp_path: Path) -> None:
    machines = Machines(tmp_path / "authority")
    cluster = NatsCluster(tmp_path / "nats", size=1, tls=machines.certify(tmp_path / "tls"))
    shutil.copytree(machines.issue("edge-1", "edge"), home.machine)

    async def use(environ: dict[str, str]) -> None:
        async with opened_state(home, environ, "edge") as state:
            assert state is not None
            assert state.problem == ""

    asyncio.run(use({"SKERRY_STATE": cluster.url}))
    own = f"{cluster.url}&certificates={tmp_path / 'tls'}"
    asyncio.run(use({"SKERRY_STATE": own}))
    with pytest.raises(CannotStart, match=r"nowhere lacks one of tls\.crt, tls\.key and ca\.crt"):
        asyncio.run(use({"SKERRY_STATE": f"{cluster.url}&certificates=/nowhere"}))
    member = Member(id="a", kind="node", region="r")
    registry = open_registry(home, {"SKERRY_REGISTRY": cluster.url.partition("?")[0]})
    registry.announce(member)
    assert registry.members() == [member]
    registry.close()
    cluster.stop()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nats://a?replicas=3", "there is no option 'replicas'"),
        ("nats://a b", "'a b' is no HOST"),
        ("tls://a?certificates=/nowhere", "/nowhere lacks one of"),
    ],
)
def test_a_registry_that_is_written_wrongly(home: Home, url: str, message: str) -> None:
    with pytest.raises(RegistryUnavailable, match=f"SKERRY_REGISTRY: .*{message}"):
        open_registry(home, {"SKERRY_REGISTRY": url})
