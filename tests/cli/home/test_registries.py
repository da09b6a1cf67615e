"""Which registry a process uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.drivers.nats_server import NatsServer

from skerry_cli.home.registries import open_registry
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
