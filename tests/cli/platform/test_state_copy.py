"""`skerry state copy`: what a home had is on NATS servers, and what they had in a home, once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.platform.state_picture import (
    KILLED,
    PAYERS,
    fill,
    in_home,
    on_servers,
    picture,
    spend,
    still_waiting,
    use,
    used,
    used_on,
)
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import QuotaExceeded, Unavailable
from skerry_cli import main
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.keys import cluster_key
from skerry_cli.home.shared_state import opened_state, using_state
from skerry_cli.home.state import JOURNAL_NAME, Home
from skerry_edge.gate.token_file import TokenRecords
from skerry_edge.ledger.responses_store import StoredResponse

RESPONSE = StoredResponse(response=msgspec.Raw(b'{"id":"resp_1"}'), messages=[])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    monkeypatch.setenv("SKERRY_HOME", str(home.root))
    return home


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats", size=1)
    yield cluster
    cluster.stop()


def leave(cluster: NatsCluster, *options: str) -> int:
    return main(["state", "copy", "--from", "sqlite", "--to", cluster.url, *options])


def come_back(cluster: NatsCluster) -> int:
    return main(["state", "copy", "--from", cluster.url, "--to", "sqlite"])


async def start(home: Home, url: str) -> None:
    async with opened_state(home, {"SKERRY_STATE": url}, "edge"):
        pass


def test_what_is_copied_is_the_same_there_and_back(
    home: Home, cluster: NatsCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = home.stores / JOURNAL_NAME

    async def filled() -> dict[str, object]:
        async with in_home(home) as place:
            await fill(place)
            return await picture(place)

    before = asyncio.run(filled())
    use(journal, "a", "b", "c")
    assert main(["tokens", "create", "--account", "new", "--name", "laptop"]) == 0
    capsys.readouterr()
    assert leave(cluster, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["tokens", "1", "0"], ["money", "2", "0"], ["responses", "6", "0"], ["keys", "2", "0"],
        ["files", "6", "0"], ["batches", "5", "0"], ["usage", "3", "0"],
    ]  # fmt: skip
    assert leave(cluster) == 0
    shown = capsys.readouterr().out
    assert [line.split()[1:] for line in shown.splitlines()[1:]] == [
        ["1", "1", "0"], ["2", "2", "0"], ["6", "6", "0"], ["2", "2", "0"], ["6", "6", "0"],
        ["5", "5", "0"], ["3", "3", "0"],
    ]  # fmt: skip

    async def moved() -> tuple[list[Any], dict[str, Any]]:
        async with on_servers(cluster, home) as place:
            assert await picture(place) == before
            waiting = await asyncio.to_thread(still_waiting, place, "half", "fresh")
            assert await asyncio.to_thread(place.queue.retry, "0" * 32, "dead") == 6
            await spend(place, PAYERS[0], 1.0)
            await fill(place, "later-")
            return waiting, await picture(place, "later-")

    waiting, after = asyncio.run(moved())
    assert [(name, index, attempt) for name, index, _, attempt, *_ in waiting] == [
        *(("fresh", index, 1) for index in range(6)),
        ("half", 1, 2), ("half", 4, 1), ("half", 5, 1),
    ]  # fmt: skip
    assert waiting[0][2:] == (b"fresh-0" * 9, 1, "token", "/target")
    assert asyncio.run(used_on(cluster, home, tmp_path)) == (3, 6, 60)
    assert come_back(cluster) == 0

    async def returned() -> None:
        async with in_home(home) as place:
            assert await picture(place, "later-") == after
            assert (await place.spending.spent(PAYERS[0]))[0] == pytest.approx(2.5)
            revived = await asyncio.to_thread(still_waiting, place, "dead")
            assert [(index, attempt) for _, index, _, attempt, *_ in revived] == [
                (index, 1) for index in range(6)
            ]
            again = await asyncio.to_thread(still_waiting, place, "half", "fresh")
            assert again == waiting

    asyncio.run(returned())
    assert used(journal) == (3, 6, 60)
    assert main(["tokens", "create", "--account", "new"]) == 0, "the home has its tokens again"
    assert len(TokenRecords(home.tokens).read()) == 2


@pytest.mark.slow
def test_one_that_is_killed_goes_on_and_nothing_is_there_twice(
    home: Home, cluster: NatsCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async def filled() -> dict[str, object]:
        async with in_home(home) as place:
            await fill(place)
            return await picture(place)

    before = asyncio.run(filled())
    for table in ("responses", "files", "batches"):
        command = [sys.executable, "-c", KILLED, table, "state", "copy", "--from", "sqlite",
                   "--to", cluster.url]  # fmt: skip
        done = subprocess.run(command, capture_output=True, check=False, env=os.environ)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        for url in ("sqlite", cluster.url):
            with pytest.raises(CannotStart, match="is on its way to nats://127"):
                asyncio.run(start(home, url))
    assert leave(cluster) == 0
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert shown["money"] == ["2", "0", "0"]
    assert shown["responses"] == ["6", "0", "0"]
    assert shown["batches"] == ["5", "5", "0"]

    async def moved() -> None:
        async with on_servers(cluster, home) as place:
            assert await picture(place) == before

    asyncio.run(moved())


def test_a_cap_is_spent_at_one_place_only(
    home: Home, cluster: NatsCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Home(tmp_path / "other")
    other.create()
    cluster_key(home)
    shutil.copy(home.cluster_key, other.cluster_key)

    async def spend_at_home(at: Home, dollars: float) -> None:
        async with in_home(at) as place:
            await spend(place, "k", dollars, cap=1.0)

    async def spend_there(dollars: float) -> None:
        async with on_servers(cluster, home) as place:
            await spend(place, "k", dollars, cap=1.0)

    assert main(["tokens", "create", "--account", "new"]) == 0
    [token] = TokenRecords(home.tokens).read()
    asyncio.run(spend_at_home(home, 0.5))
    asyncio.run(spend_at_home(other, 0.25))
    assert leave(cluster) == 0
    with pytest.raises(CannotStart, match=r"copied to nats://127.*have that URL as `state`"):
        asyncio.run(start(home, "sqlite"))
    asyncio.run(start(home, cluster.url))
    os.environ["SKERRY_HOME"] = str(other.root)
    assert leave(cluster) == 0, "while nothing or something runs on the servers: its money adds"
    os.environ["SKERRY_HOME"] = str(home.root)
    asyncio.run(spend_there(0.125))
    with pytest.raises(QuotaExceeded):
        asyncio.run(spend_there(0.25))
    assert come_back(cluster) == 0
    with pytest.raises(CannotStart, match="was copied back into a home"):
        asyncio.run(start(home, cluster.url))
    with pytest.raises(Unavailable, match="copied back into a home"):
        asyncio.run(seen_sealed(cluster, home))
    asyncio.run(start(home, "sqlite"))
    with pytest.raises(QuotaExceeded, match=r"0\.875 is spent"):
        asyncio.run(spend_at_home(home, 0.25))
    asyncio.run(spend_at_home(home, 0.0625))
    assert main(["tokens", "revoke", token]) == 0
    os.environ["SKERRY_HOME"] = str(other.root)
    assert come_back(cluster) == 1
    assert "copied back into another home" in capsys.readouterr().err
    os.environ["SKERRY_HOME"] = str(home.root)
    assert leave(cluster) == 0
    asyncio.run(start(home, cluster.url))
    asyncio.run(spend_there(0.0625))
    with pytest.raises(QuotaExceeded):
        asyncio.run(spend_there(0.001))
    assert TokenRecords(home.tokens).read() == {}, "what was revoked stays so"


async def seen_sealed(cluster: NatsCluster, home: Home) -> None:
    """Spend at an edge that started before it could see the seal."""
    async with on_servers(cluster, home) as place:
        while True:
            hold = await place.spending.reserve((), 0.0)
            place.spending.settle(hold, 0.0)
            await asyncio.sleep(0.05)


def test_nothing_is_copied_while_somebody_uses_it(
    home: Home, cluster: NatsCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with using_state(home):
        assert leave(cluster) == 1
    assert "edges or commands of this home are running: end them" in capsys.readouterr().err
    with using_state(home, alone=True), pytest.raises(CannotStart, match="is being copied"):
        asyncio.run(start(home, "sqlite"))
    assert leave(cluster) == 0

    async def serving() -> int:
        async with on_servers(cluster, home) as place:
            await spend(place, "k", 0.5)
            return await asyncio.to_thread(come_back, cluster)

    assert asyncio.run(serving()) == 1
    assert "edges use these servers: end them first (1 of them)" in capsys.readouterr().err
    assert come_back(cluster) == 0


def test_a_home_with_a_state_of_its_own_takes_no_other(
    home: Home, cluster: NatsCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def filled(at: Home) -> None:
        async with in_home(at) as place:
            await spend(place, "k", 0.5)

    asyncio.run(filled(home))
    assert come_back(cluster) == 1
    assert "would be mixed with the servers'" in capsys.readouterr().err
    assert main(["state", "copy", "--from", "sqlite", "--to", "sqlite"]) == 1
    assert "one of --from and --to is sqlite" in capsys.readouterr().err
    assert leave(cluster) == 0
    assert leave(cluster) == 1
    assert "was copied to nats://127" in capsys.readouterr().err


def test_a_zone_stays_a_zone(home: Home, cluster: NatsCluster) -> None:
    zone = home.in_zone("eu")
    zone.create()

    async def put() -> None:
        async with in_home(zone) as place:
            await place.responses.put("t", "resp_1", RESPONSE)

    async def got() -> list[StoredResponse | None]:
        found = []
        for each in (zone, home):
            async with on_servers(cluster, each) as place:
                found.append(await place.responses.get("t", "resp_1"))
        return found

    async def got_back() -> list[StoredResponse | None]:
        found = []
        for each in (zone, home):
            async with in_home(each) as place:
                found.append(await place.responses.get("t", "resp_1"))
        return found

    asyncio.run(put())
    assert leave(cluster) == 0
    assert asyncio.run(got()) == [RESPONSE, None]
    assert come_back(cluster) == 0
    assert asyncio.run(got_back()) == [RESPONSE, None]
