"""The response cache as a store: by tenant and key, bounded, for a time, across restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry.errors import InvalidInput
from skerry_edge.ledger.response_cache import (
    CachePolicy,
    ResponseCache,
    StoredAnswer,
    key_of,
    policy_of,
)
from skerry_regions.wire.protocol import Done, PhaseUsage, Sampling, Tokens

KEY, OTHER_KEY = key_of("a"), key_of("b")


def answer(text: bytes = b"hi") -> StoredAnswer:
    usage = PhaseUsage(
        prompt_tokens=3, cached_tokens=1, output_tokens=len(text),
        queue_seconds=0.1, prefill_seconds=0.2, decode_seconds=0.3,
    )  # fmt: skip
    tokens = Tokens(stream=1, index=0, token_ids=list(text), logprobs=[(-0.5, [(1, -0.5)])])
    return StoredAnswer(streams=[[tokens, Done(stream=1, finish_reason="stop", usage=usage)]])


class Time:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


Opened = Callable[..., ResponseCache]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return lambda **bounds: ResponseCache(tmp_path / "answers.db", **bounds)


@pytest.mark.anyio
async def test_an_answer_comes_back_whole_also_after_a_restart(opened: Opened) -> None:
    cache = opened()
    cache.keep("t", {KEY: 60}, answer())
    assert await cache.find("t", KEY) == answer()
    cache.close()
    again = opened()
    assert await again.find("t", KEY) == answer()
    assert await again.find("t", OTHER_KEY) is None
    again.close()


@pytest.mark.anyio
async def test_nobody_finds_another_tenants(opened: Opened) -> None:
    cache = opened()
    cache.keep("t", {KEY: 60}, answer())
    assert await cache.find("u", KEY) is None
    cache.close()


@pytest.mark.anyio
async def test_each_key_has_its_own_time(opened: Opened) -> None:
    clock = Time()
    cache = opened(clock=clock)
    cache.keep("t", {KEY: 60, OTHER_KEY: 600}, answer())
    clock.now += 60
    assert await cache.find("t", KEY) is None
    assert await cache.find("t", OTHER_KEY) == answer()
    cache.close()


@pytest.mark.anyio
async def test_the_oldest_answers_go_first(opened: Opened) -> None:
    cache = opened(max_entries=2)
    for number in range(3):
        cache.keep("t", {key_of(number): 60}, answer())
    found = [await cache.find("t", key_of(number)) for number in range(3)]
    assert found == [None, answer(), answer()]
    cache.close()


@pytest.mark.anyio
async def test_a_tenant_makes_room_at_its_own_cost(opened: Opened) -> None:
    cache = opened(max_tenant_bytes=3000)
    cache.keep("u", {KEY: 60}, answer())
    for number in range(4):
        cache.keep("t", {key_of(number): 60}, answer(b"x" * 1000))
    found = [await cache.find("t", key_of(number)) is not None for number in range(4)]
    assert found == [False, False, True, True]
    assert await cache.find("u", KEY) == answer()
    cache.close()


@pytest.mark.anyio
async def test_what_is_too_large_is_not_kept(opened: Opened) -> None:
    cache = opened(max_tenant_bytes=500)
    cache.keep("t", {KEY: 60}, answer(b"x" * 1000))
    assert await cache.find("t", KEY) is None
    cache.close()


@pytest.mark.anyio
async def test_a_file_that_is_no_database_fails_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answers.db"
    path.write_bytes(b"no database" * 100)
    cache = ResponseCache(path)
    cache.keep("t", {KEY: 60}, answer())
    assert await cache.find("t", KEY) is None
    cache.close()
    assert "cannot be read" in caplog.text
    assert "could not be kept" in caplog.text


@pytest.mark.anyio
async def test_what_another_version_wrote_is_not_taken(opened: Opened, tmp_path: Path) -> None:
    cache = opened()
    cache.keep("t", {KEY: 60}, answer())
    await cache.find("t", KEY)
    with sqlite3.connect(tmp_path / "answers.db") as database:
        database.execute("UPDATE answers SET document = ?", (b"\xc1",))
    database.close()
    assert await cache.find("t", KEY) is None
    cache.close()


def test_the_file_is_its_owners_alone(opened: Opened, tmp_path: Path) -> None:
    cache = opened()
    cache.keep("t", {KEY: 60}, answer())
    cache.close()
    assert (tmp_path / "answers.db").stat().st_mode & 0o777 == 0o600


def test_keys_tell_what_they_are_made_of() -> None:
    assert key_of(Sampling(seed=1)) == key_of(Sampling(seed=1))
    assert key_of(Sampling(seed=1)) != key_of(Sampling(seed=2))
    assert key_of([1], [2]) != key_of([1, 2])


@pytest.mark.parametrize(
    ("headers", "default", "policy"),
    [
        ({}, None, None),
        ({}, 60, CachePolicy(60)),
        ({"cf-aig-cache-ttl": "3600"}, None, CachePolicy(3600, takes_any=True)),
        ({"cf-aig-cache-ttl": "3600"}, 60, CachePolicy(3600, takes_any=True)),
        ({"cf-cache-ttl": "3600"}, None, CachePolicy(3600, takes_any=True)),
        ({"cf-cache-ttl": "9", "cf-aig-cache-ttl": "8"}, None, CachePolicy(8, takes_any=True)),
        ({"cf-skip-cache": "true"}, 60, None),
        ({"cf-aig-gateway-id": "g"}, 60, CachePolicy(60, gateway="g")),
        ({"cf-aig-cache-ttl": "0"}, 60, None),
        ({"cf-aig-cache-ttl": "60", "cf-aig-skip-cache": "true"}, None, None),
        ({"cf-aig-cache-ttl": "60", "cf-aig-skip-cache": "False"}, None,
         CachePolicy(60, takes_any=True)),
        ({"cf-aig-cache-key": "k"}, None, CachePolicy(300, "k", takes_any=True)),
        ({"cf-aig-cache-key": "k"}, 60, CachePolicy(60, "k", takes_any=True)),
        ({"cf-aig-cache-key": "k", "cf-aig-cache-ttl": "0"}, None, None),
    ],
)  # fmt: skip
def test_what_headers_ask_for(
    headers: dict[str, str], default: int | None, policy: CachePolicy | None
) -> None:
    assert policy_of(headers, default) == policy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cf-aig-cache-ttl", "soon"),
        ("cf-aig-cache-ttl", "-1"),
        ("cf-aig-cache-ttl", "2592001"),
        ("cf-aig-skip-cache", "yes"),
        ("cf-aig-cache-key", ""),
        ("cf-aig-cache-key", "k" * 1025),
    ],
)
def test_headers_out_of_range(name: str, value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        policy_of({name: value})
    assert refused.value.param == name
