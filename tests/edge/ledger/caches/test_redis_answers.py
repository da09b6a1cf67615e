"""A response cache of several edges: zones, bounds, and a server that is away, full or slow."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.edge.ledger.caches.opened_caches import Opened, kept
from tests.edge.ledger.redis_server import RedisServer
from tests.edge.ledger.test_response_cache import KEY, OTHER_KEY, answer

from skerry_cli.home.keys import secret
from skerry_cli.home.shared.answers import share_answers
from skerry_cli.home.state import Home
from skerry_edge.ledger.response_cache import ResponseCache
from skerry_edge.shared.redis_answers import (
    FAILURES,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    CircuitBreaker,
    TieredAnswers,
)

pytestmark = pytest.mark.anyio


# --- of one that several edges share --------------------------------------------------------------


async def test_what_is_in_the_server_names_nobody_and_is_bounded(opened: Opened) -> None:
    cache = opened.redis(max_entries=5)
    for number in range(8):
        cache.keep("a tenant", {bytes([number]): 60}, answer())
        await kept(cache, "a tenant", bytes([number]))
    keys = opened.server.names()
    assert len(keys) == 5 + 2
    assert all(key.startswith("skerry:eu:{") and "tenant" not in key for key in keys)
    assert all(opened.server.ask("TTL", key) not in (b":-1\r\n", b":-2\r\n") for key in keys)


async def test_each_key_has_its_own_time_also_in_an_edges_own_cache(
    opened: Opened, tmp_path: Path
) -> None:
    now = 1_000_000.0
    shared = opened.redis()
    shared.keep("t", {KEY: 60}, answer())
    shared.keep("t", {OTHER_KEY: 600}, answer())
    await kept(shared, key=OTHER_KEY)
    own = ResponseCache(tmp_path / "answers.db", clock=lambda: now)
    assert await TieredAnswers(own, shared).find("t", KEY) == answer()
    assert await kept(own) == answer()
    names = [name for name in opened.server.names() if name[-5:] not in ("order", "sizes")]
    left = sorted(int(opened.server.ask("TTL", name)[1:-2]) for name in names)
    assert 0 < left[0] <= 60 < left[1] <= 600
    now += 60
    assert await own.find("t", KEY) is None
    for name in names:
        opened.server.ask("PEXPIRE", name, "0")
    assert await shared.find("t", OTHER_KEY) is None
    own.close()


async def test_zones_and_platforms_have_their_answers_apart(opened: Opened) -> None:
    cache = opened.redis()
    cache.keep("t", {KEY: 60}, answer())
    await kept(cache)
    assert await opened.redis(zone="us").find("t", KEY) is None
    assert await opened.redis(secret=b"o" * 32).find("t", KEY) is None


async def test_what_somebody_else_wrote_is_not_believed(opened: Opened) -> None:
    cache = opened.redis()
    cache.keep("t", {KEY: 60, OTHER_KEY: 60}, answer())
    await kept(cache, key=OTHER_KEY)
    one, other = (key for key in opened.server.names() if key[-5:] not in ("order", "sizes"))
    opened.server.ask("COPY", one, other, "REPLACE")
    found = [await cache.find("t", key) for key in (KEY, OTHER_KEY)]
    assert sorted(each is None for each in found) == [False, True], "another answer's"
    for content in (b"", b"\x01", b"\x02" + bytes(200), b"garbage" * 50):
        opened.server.ask("SET", one, content)
        opened.server.ask("SET", other, content)
        assert [await cache.find("t", key) for key in (KEY, OTHER_KEY)] == [None, None]
    assert opened.outcomes["damaged"] == 9
    assert opened.outcomes["error"] == 0


async def test_a_server_that_was_emptied_keeps_again(opened: Opened) -> None:
    cache = opened.redis()
    cache.keep("t", {KEY: 60}, answer())
    await kept(cache)
    opened.server.ask("FLUSHALL")
    opened.server.ask("SCRIPT", "FLUSH")
    assert await cache.find("t", KEY) is None
    cache.keep("t", {KEY: 60}, answer())
    assert await kept(cache) == answer()


@pytest.mark.parametrize("lost", ["order", "sizes"])
async def test_what_a_full_server_lets_go_stops_no_answer(opened: Opened, lost: str) -> None:
    cache = opened.redis(max_tenant_bytes=2000)
    for number in range(12):
        key = bytes([number])
        cache.keep("t", {key: 60}, answer())
        await kept(cache, key=key)  # one after the other: they let go of each other
        if number == 3:
            [name] = (name for name in opened.server.names() if name.endswith(lost))
            opened.server.ask("DEL", name)
    cache.keep("t", {KEY: 60}, answer(b"last"))
    assert await kept(cache) == answer(b"last")
    assert opened.outcomes["error"] == 0


async def test_a_server_that_is_full_of_other_things_costs_the_cache_only(opened: Opened) -> None:
    opened.server.ask("CONFIG", "SET", "maxmemory", "1")
    cache = opened.redis()
    for _ in range(10):
        cache.keep("t", {KEY: 60}, answer())
        assert await cache.find("t", KEY) is None
    opened.server.ask("CONFIG", "SET", "maxmemory", "0")


async def test_a_server_that_dies_is_left_alone_and_used_once_it_is_back(tmp_path: Path) -> None:
    server, now = RedisServer(), 0.0
    opened = Opened(server)
    shared = opened.redis(clock=lambda: now)
    cache = TieredAnswers(ResponseCache(tmp_path / "answers.db"), shared)
    cache.keep("t", {KEY: 60}, answer())
    await kept(shared)
    server.kill()
    assert await cache.find("t", KEY) == answer(), "its own cache is in front"
    for _ in range(20):
        assert await cache.find("t", OTHER_KEY) is None
    assert opened.outcomes["error"] == FAILURES
    assert opened.outcomes["skipped"] == 20 - FAILURES
    server.start()
    now += FIRST_PAUSE
    cache.keep("t", {OTHER_KEY: 60}, answer(b"new"))
    assert await kept(shared, key=OTHER_KEY) == answer(b"new")
    cache.close()
    server.stop()


async def test_a_server_that_is_slow_costs_a_request_milliseconds(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the cache's own bounds of a call are what is tested
    cache = opened.redis(find_seconds=0.005)
    opened.server.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        for _ in range(200):
            assert await cache.find("t", KEY) is None
        assert time.monotonic() - began < 5, "200 calls; they would take 10 s one after the other"
    finally:
        opened.server.signal(signal.SIGCONT)
    assert opened.outcomes["error"] == FAILURES
    assert opened.outcomes["skipped"] == 200 - FAILURES


def test_after_each_failure_the_server_is_left_alone_for_longer() -> None:
    now = 0.0
    breaker = CircuitBreaker(lambda: now)
    for _ in range(FAILURES):
        assert breaker.lets_through()
        breaker.note(failed=True)
    pause, pauses = FIRST_PAUSE, list[float]()
    while pause < LONGEST_PAUSE:
        assert not breaker.lets_through()
        now += pause
        assert breaker.lets_through()
        assert not breaker.lets_through(), "one at a time tries it"
        breaker.note(failed=True)
        pauses.append(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    now += LONGEST_PAUSE
    assert breaker.lets_through()
    breaker.note(failed=False)
    assert [breaker.lets_through() for _ in range(3)] == [True] * 3


async def test_an_edge_shares_by_the_key_root_of_its_home(
    server: RedisServer, tmp_path: Path
) -> None:
    homes = [Home(tmp_path / name, zone="eu") for name in ("a", "b", "stranger")]
    for home in homes:
        home.create()
    secret(homes[0])
    shutil.copy(homes[0].secret, homes[1].secret)
    outcomes = list[str]()
    environ = {"SKERRY_RESPONSE_CACHE": f"eu={server.url}"}
    one, other, stranger = (
        share_answers(home, environ, outcomes.append)(ResponseCache(home.root / "answers.db"))
        for home in homes
    )
    one.keep("t", {KEY: 60}, answer())
    for _ in range(3000):
        if await other.find("t", KEY) is not None:
            break
        await asyncio.sleep(0.005)
    assert await other.find("t", KEY) == answer()
    assert outcomes[-1] == "hit"
    assert await stranger.find("t", KEY) is None
    for cache in (one, other, stranger):
        cache.close()
