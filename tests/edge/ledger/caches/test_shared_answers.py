"""Response caches: one suite over the edge's own, one of several edges, and both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.edge.ledger.caches.opened_caches import Opened, kept
from tests.edge.ledger.test_response_cache import KEY, OTHER_KEY, answer

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.shared.answers import server_of
from skerry_edge.ledger.response_cache import AnswerCache, ResponseCache
from skerry_edge.shared.redis_answers import TieredAnswers

pytestmark = pytest.mark.anyio

Open = Callable[..., AnswerCache]


@pytest.fixture(params=["file", "redis", "both"])
def opening(request: pytest.FixtureRequest, tmp_path: Path, opened: Opened) -> Open:
    def open_one(max_tenant_bytes: int = 1 << 20) -> AnswerCache:
        if request.param == "redis":
            return opened.redis(max_tenant_bytes=max_tenant_bytes)
        own = ResponseCache(tmp_path / "answers.db", max_tenant_bytes=max_tenant_bytes)
        opened.made.append(own)
        if request.param == "file":
            return own
        return TieredAnswers(own, opened.redis(max_tenant_bytes=max_tenant_bytes))

    return open_one


# --- of every cache -------------------------------------------------------------------------------


async def test_an_answer_comes_back_whole_at_another_edge(opening: Open) -> None:
    cache = opening()
    cache.keep("t", {KEY: 60}, answer())
    assert await kept(cache) == answer()
    assert await opening().find("t", KEY) == answer()
    assert await cache.find("t", OTHER_KEY) is None


async def test_no_tenant_finds_anothers(opening: Open) -> None:
    cache = opening()
    cache.keep("t", {KEY: 60}, answer())
    await kept(cache)
    assert await cache.find("u", KEY) is None


async def test_a_tenant_makes_room_at_its_own_cost_the_oldest_first(
    opening: Open, opened: Opened
) -> None:
    cache = opening(max_tenant_bytes=20_000)
    cache.keep("other", {KEY: 60}, answer())
    await kept(cache, "other")
    for number in range(10):
        cache.keep("t", {bytes([number]): 60}, answer(b"x" * 4000))
        for each in opened.made:  # the server may be later than the edge's own
            assert await kept(each, "t", bytes([number])) is not None
    found = [await cache.find("t", bytes([number])) is not None for number in (9, 0, 1, 2)]
    assert found == [True, False, False, False]
    assert await cache.find("other", KEY) == answer()


async def test_what_is_too_large_is_not_kept(opening: Open) -> None:
    cache = opening(max_tenant_bytes=2000)
    cache.keep("t", {KEY: 60}, answer(b"x" * 4000))
    cache.keep("t", {OTHER_KEY: 60}, answer())
    await kept(cache, key=OTHER_KEY)
    assert await cache.find("t", KEY) is None


# --- which server ---------------------------------------------------------------------------------


def test_each_zone_has_its_own_server() -> None:
    text = "redis://:a=b@10.0.0.9:6379/0 eu=rediss://cache.eu.example"
    assert server_of(text, "global") == "redis://:a=b@10.0.0.9:6379/0"
    assert server_of(text, "eu") == "rediss://cache.eu.example"
    assert server_of(text, "us") is None
    assert server_of("", "global") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://:secret@a", "is \\[ZONE=\\]redis://"),
        ("eu=10.0.0.9", "is \\[ZONE=\\]redis://"),
        ("redis://:secret@a redis://b", "two servers for global"),
    ],
)
def test_what_is_no_server(text: str, message: str) -> None:
    with pytest.raises(CannotStart, match=message) as refused:
        server_of(text, "global")
    assert "secret" not in str(refused.value)
