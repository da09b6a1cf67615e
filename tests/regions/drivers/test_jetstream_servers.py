"""NATS servers as they may be: away, unfit, old, small, plain, those of the manifests."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.regions.drivers.nats_server import NatsCluster, NatsServer
from tests.regions.drivers.small_stream import SPEC, until

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import StateUnfit
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.server_settings import (
    ClusterSettings,
    ServerSettings,
    unfit_settings,
    version_of,
)
from skerry_regions.drivers.jetstream.specs import GIB, MIB, StreamSpec
from skerry_regions.drivers.jetstream.stream import KeyedStream, Write
from skerry_regions.drivers.jetstream.tables import declared
from skerry_regions.state_url import StateURL


def test_servers_that_are_away_stop_no_start_and_are_used_when_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_regions.drivers.jetstream.connection.OPEN_SECONDS", 0.2)
    cluster = NatsCluster(tmp_path, size=1)
    cluster.kill("n1")

    async def use() -> None:
        jetstream = JetStream(cluster.state)
        await jetstream.open((SPEC, "eu"))
        stream = KeyedStream(jetstream, SPEC, "eu")
        with pytest.raises(Unavailable, match="NATS cannot be used now"):
            await stream.last("a")
        cluster.start("n1")
        await until(lambda: not jetstream.problem, seconds=15)
        assert await stream.last("a") is None
        await jetstream.close()

    asyncio.run(use())
    cluster.stop()


@pytest.mark.parametrize(
    ("sync", "query", "message"),
    [
        ("2m", "system=sys:sys&replicas=1", "Set `sync_interval: always`"),
        ("always", "replicas=1", r"write `\?system=USER:PASSWORD`"),
        ("always", "system=sys:sys", "is not part of a cluster"),
        ("2m", "replicas=1&durability=relaxed", None),
        ("always", "system=sys:sys&replicas=1", None),
    ],
)
def test_unfit_servers_are_refused_with_what_to_change(
    tmp_path: Path, sync: str, query: str, message: str | None
) -> None:
    cluster = NatsCluster(tmp_path, size=1, sync=sync)
    url = StateURL.parse(f"{cluster.url.partition('?')[0]}?{query}")
    assert url is not None

    async def use() -> None:
        jetstream = JetStream(url)
        if message is None:
            await jetstream.open((SPEC, "eu"))
            assert jetstream.problem == ""
        else:
            with pytest.raises(StateUnfit, match=message):
                await jetstream.open((SPEC, "eu"))
        await jetstream.close()

    asyncio.run(use())
    cluster.stop()


def test_old_and_small_servers_are_named() -> None:
    url = StateURL(servers=("nats://a:4222",), replicas=1, system=("sys", "sys"))
    cluster = ClusterSettings(
        (
            ServerSettings(name="old", version=(2, 11, 9), is_synced=True),
            ServerSettings(name="small", version=(2, 12, 3), is_synced=True, store_bytes=GIB),
        ),
        is_clustered=True,
    )
    spec = StreamSpec(table="big", max_bytes=GIB, max_message_bytes=1024, is_durable=True)
    assert unfit_settings(cluster, url, [(spec, "eu")]) == [
        "The server old is nats-server 2.11.9: at least 2.12.3 is needed.",
        "The server small may store 1.0 GiB, and the streams may take 1.0 GiB, which is to be at "
        "most 70% of it: raise `max_file_store`.",
    ]
    assert unfit_settings(cluster, url, []) == [
        "The server old is nats-server 2.11.9: at least 2.12.3 is needed."
    ]


def test_versions() -> None:
    assert version_of("2.12.3") == version_of("2.12.3-RC.1") == (2, 12, 3)
    assert version_of("2.15.1") > (2, 12, 3) > version_of("none")


def test_every_stream_is_bounded_and_names_its_zone() -> None:
    for spec, zone in declared("eu"):
        config = spec.config(zone, 3)
        assert config["name"].endswith(f"-{zone}")
        assert config["subjects"] == [f"{config['name']}.>"]
        assert 0 < config["max_bytes"] <= 64 * GIB
        assert 0 < config["max_msg_size"] <= MIB


def test_a_plain_server_serves_a_trial(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    url = StateURL.parse(f"{server.url}?replicas=1&durability=relaxed")
    assert url is not None

    async def use() -> None:
        jetstream = JetStream(url)
        await jetstream.open((SPEC, "eu"))
        stream = KeyedStream(jetstream, SPEC, "eu")
        assert await stream.write(Write("a", b"x", expected=0)) == 1
        await jetstream.close()

    asyncio.run(use())
    server.stop()


def test_the_manifests_servers_have_room_for_all_streams() -> None:
    folder = Path(__file__).parents[3] / "infra/kubernetes/base/control"
    [store] = re.findall(r"max_file_store: (\d+)GB", (folder / "nats.conf").read_text())
    [disk] = re.findall(r"storage: (\d+)Gi", (folder / "nats.yaml").read_text())
    of_files = [spec for spec, _ in declared("eu") if spec.storage == "file"]
    wanted = sum(spec.max_bytes for spec in of_files)
    assert wanted <= int(store) * 10**9
    assert wanted <= 0.7 * int(disk) * GIB
    assert wanted == (7.25 + 2 * 0.25) * GIB, "docs/operations.md says how much"
