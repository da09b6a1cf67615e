"""The registry in NATS: many writers, servers that die, are silent or late, or are not there."""

from __future__ import annotations

import asyncio
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nats.aio.client import Client
from tests.regions.drivers.conftest import member
from tests.regions.drivers.nats_server import NatsServer

from skerry_regions.drivers import nats_registry
from skerry_regions.drivers.nats_registry import NatsRegistry
from skerry_regions.registry import RegistryUnavailable


class Late(Client):
    """A client that gets records later than answers to what it asks meanwhile."""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        loop, message = asyncio.get_running_loop(), (sid, subject, reply, data, headers)
        process = super()._process_msg
        if subject.startswith(b"$KV."):
            loop.call_later(0.1, lambda: loop.create_task(process(*message)))
        else:
            await process(*message)


def test_one_sees_what_another_wrote(nats: NatsServer) -> None:
    bucket = secrets.token_hex(8)
    one, other = (NatsRegistry(nats.url, bucket=bucket) for _ in range(2))
    for turn in range(20):
        one.announce(member("a", streams=turn))
        assert other.members() == [member("a", streams=turn)]
    other.withdraw("a", 1)
    assert one.members() == []
    one.close()
    other.close()


def test_who_has_just_connected_waits_for_records_that_are_on_their_way(nats: NatsServer) -> None:
    """The client says "that is all" where the server has sent everything and none has come."""
    bucket = secrets.token_hex(8)
    one, other = (
        NatsRegistry(nats.url, bucket=bucket, make_client=make) for make in (Client, Late)
    )
    one.announce(member("a"))
    assert other.members() == [member("a")]
    one.withdraw("a", 1)
    assert other.members() == []
    one.close()
    other.close()


def test_many_write_one_record_and_the_newest_stays(nats: NatsServer) -> None:
    bucket = secrets.token_hex(8)
    writers = [NatsRegistry(nats.url, bucket=bucket) for _ in range(4)]
    with ThreadPoolExecutor(len(writers)) as pool:
        holders = list(pool.map(lambda each: each[1].announce(member("a", incarnation=each[0])),
                                enumerate(writers)))  # fmt: skip
    assert holders[3] == 3
    assert all(held >= number for number, held in enumerate(holders))
    assert [each.members() for each in writers] == [[member("a", incarnation=3)]] * 4
    for writer in writers:
        writer.close()


def test_a_server_that_dies_is_away_and_one_that_comes_back_is_used(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    registry = NatsRegistry(server.url)
    registry.announce(member("a"))
    server.kill()
    for call in (registry.members, lambda: registry.announce(member("a"))):
        with pytest.raises(RegistryUnavailable, match=r"nats://127\.0\.0\.1"):
            call()
    server.start()
    assert registry.members() == [], "it kept nothing"
    registry.announce(member("a"))
    assert registry.members() == [member("a")]
    registry.close()
    server.stop()


def test_a_server_that_never_greets_is_left_without_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_registry, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = NatsRegistry(f"nats://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RegistryUnavailable, match="TimeoutError"):
            registry.members()
        registry.close()
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(1) == b""


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        port = silent.getsockname()[1]
        registry = NatsRegistry(f"nats://127.0.0.1:{port}")  # a process starts all the same
        for call in (registry.members, lambda: registry.announce(member("a"))):
            with pytest.raises(RegistryUnavailable, match="nats://127"):
                call()
        registry.close()


def test_who_starts_before_the_server_is_there_when_it_is(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.kill()
    registry = NatsRegistry(server.url)
    with pytest.raises(RegistryUnavailable):
        registry.announce(member("a"))
    server.start()
    registry.announce(member("a"))
    assert registry.members() == [member("a")]
    registry.close()
    server.stop()
