"""Homes of one platform on real NATS servers: limits, catalog and key root are the same in all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.edge.gate.shared_tokens import soon
from tests.regions.drivers.nats_server import NatsCluster

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.shared.key_root import WrongKey, sealed, unsealed
from skerry_cli.home.shared.settings import opened_tokens, share_edits, shared_settings
from skerry_cli.home.state import Home
from skerry_edge.gate.token_file import TokenStoreError
from skerry_edge.gate.tokens import TokenStore

ACCOUNT = "a" * 32
KEY = bytes(range(32))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats", size=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def home_of(folder: Path, name: str, key: bytes = KEY) -> Home:
    home = Home(folder / name)
    home.create()
    home.cluster_key.touch(mode=0o600)
    home.cluster_key.write_bytes(key)
    return home


def limits(requests: int) -> str:
    return f"every_tenant: {{requests_per_minute: {requests}}}\n"


def test_a_file_that_is_edited_in_one_home_is_so_in_all(
    tmp_path: Path, servers: NatsCluster, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_edge.shared.nats_settings.LOOK_SECONDS", 0.05)
    environ = {"SKERRY_STATE": servers.url}
    one, other = home_of(tmp_path, "one"), home_of(tmp_path, "other")
    one.limits.write_text(limits(300))
    for home in (one, other):
        stack.enter_context(shared_settings(home, environ, home.root.name, serves=True))
    assert other.limits.read_text() == limits(300), "it is there before the process serves"
    assert one.secret.read_bytes() == other.secret.read_bytes()
    other.limits.write_text(limits(200))
    soon(lambda: one.limits.read_text() == limits(200))
    catalog = 'aliases: {"@cf/me/mine": "@cf/huggingfacetb/smollm2-135m-instruct"}\n'
    (one.root / "catalog.yaml").write_text(catalog)
    soon((other.root / "catalog.yaml").exists)
    assert (other.root / "catalog.yaml").read_text() == catalog
    one.limits.unlink()
    soon(lambda: not other.limits.exists())
    one.limits.write_text("every_tenant: {requests_per_minute: none}\n")  # that none could use
    other.limits.write_text(limits(100))
    soon(lambda: one.limits.read_text() == limits(100))
    rejected = one.limits.with_name("limits.yaml.rejected")
    assert rejected.read_text() == "every_tenant: {requests_per_minute: none}\n"


def test_who_edits_what_others_changed_finds_theirs_and_keeps_his_own(
    tmp_path: Path, servers: NatsCluster
) -> None:
    environ = {"SKERRY_STATE": servers.url}
    one, other = home_of(tmp_path, "one"), home_of(tmp_path, "other")
    one.limits.write_text(limits(1))
    for home in (one, other):
        share_edits(home, environ)  # and its process ends
    one.limits.write_text(limits(2))
    share_edits(one, environ)
    other.limits.write_text(limits(3))
    share_edits(other, environ)
    assert one.limits.read_text() == other.limits.read_text() == limits(2)
    assert other.limits.with_name("limits.yaml.rejected").read_text() == limits(3)
    other.limits.write_text(limits(3))  # knowing theirs
    for home in (other, one):
        share_edits(home, environ)
    assert one.limits.read_text() == limits(3)


def test_servers_that_forgot_get_what_homes_have(tmp_path: Path, servers: NatsCluster) -> None:
    environ = {"SKERRY_STATE": servers.url}
    one, other = home_of(tmp_path, "one"), home_of(tmp_path, "other")
    one.limits.write_text(limits(1))
    with opened_tokens(one, environ, "one") as tokens:
        token, _ = tokens.create(account_id=ACCOUNT, now=1)
    servers.kill("n1")
    servers.forget("n1")
    servers.start("n1")
    for home in (one, other):
        share_edits(home, environ)
    assert one.limits.read_text() == other.limits.read_text() == limits(1)
    assert TokenStore(other.tokens).authenticate(token) is not None


def test_a_key_root_that_is_sealed_with_another_key_stops_a_start(
    tmp_path: Path, servers: NatsCluster
) -> None:
    environ = {"SKERRY_STATE": servers.url}
    one, other = home_of(tmp_path, "one"), home_of(tmp_path, "other", key=bytes(32))
    with shared_settings(one, environ, "one", serves=True):
        pass
    with (
        pytest.raises(CannotStart, match=f"copy that file to {other.cluster_key}"),
        shared_settings(other, environ, "other", serves=True),
    ):
        pass
    assert not other.secret.exists()
    share_edits(other, environ)  # a command needs no key root
    stored = b"".join(file.read_bytes() for file in (tmp_path / "nats").rglob("*.blk"))
    assert b"key-root" in stored
    assert one.secret.read_bytes() not in stored


def test_a_home_that_was_once_as_all_serves_while_servers_are_away(
    tmp_path: Path, servers: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"SKERRY_STATE": servers.url}
    home = home_of(tmp_path, "one")
    with opened_tokens(home, environ, "one") as tokens:
        token, _ = tokens.create(account_id=ACCOUNT, now=1)
    with shared_settings(home, environ, "one", serves=True):
        root = home.secret.read_bytes()
    servers.kill("n1")
    monkeypatch.setattr("skerry_regions.drivers.jetstream.connection.OPEN_SECONDS", 0.2)
    monkeypatch.setattr("skerry_cli.home.shared.settings.FIRST_SECONDS", 0.2)
    with shared_settings(home, environ, "one", serves=True):
        assert home.secret.read_bytes() == root
        assert TokenStore(home.tokens).authenticate(token) is not None
    with opened_tokens(home, environ, "one") as tokens, pytest.raises(TokenStoreError):
        tokens.create(account_id=ACCOUNT, now=1)
    assert json.loads(home.tokens.read_bytes())["tokens"][0]["account_id"] == ACCOUNT


def test_a_sealed_root_opens_with_its_key_alone() -> None:
    message = sealed(b"r" * 32, KEY)
    assert unsealed(message, KEY) == b"r" * 32
    assert b"r" * 8 not in message
    for wrong in (message[:-1], message[:1] + bytes(12) + message[13:], b"\x02" + message[1:], b""):
        with pytest.raises(WrongKey):
            unsealed(wrong, KEY)
    with pytest.raises(WrongKey):
        unsealed(message, bytes(32))
