"""Answers that edges of a zone give each other, by a server of the Redis protocol (extra `redis`).

    skerry:ZONE:{TENANT}:NAME    an answer; both are hashes with the platform's key
    skerry:ZONE:{TENANT}:order   names of a tenant's answers, the oldest first
    skerry:ZONE:{TENANT}:sizes   of each, and of all

The server is never a point of failure. What takes longer than a request may wait is not there;
after a few failures in a row it is left alone for a while; and the edge's own cache stays in front.
What is read is believed by a digest with the platform's key over the name and the answer.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from skerry_edge.ledger.response_cache import (
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    MAX_TENANT_BYTES,
    AnswerCache,
    StoredAnswer,
    decode_answer,
    encode_answer,
)

FIND_SECONDS = 0.01  # that a request waits
SERVER_SECONDS = 0.05  # for the server to take or send something, on a thread
CONNECT_SECONDS = 0.25
THREADS = 4
MAX_WAITING = 64  # calls; more are left out
FAILURES = 3  # in a row, after which the server is left alone
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds
VERSION = b"\x01"
DIGEST_BYTES = 16
ENTRY_BYTES = 200  # that an answer takes besides, in keys

KEEP = """
local order, sizes, prefix, name = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local ttl, size = tonumber(ARGV[3]), ARGV[4]
redis.call('SET', prefix .. name, ARGV[7], 'PX', ttl) -- first: a full server refuses it, and all
if redis.call('HLEN', sizes) ~= 2 + redis.call('ZCARD', order) then
    redis.call('DEL', order, sizes) -- the first, or the server let one of them go
end
local before = redis.call('HGET', sizes, name)
if before then redis.call('HINCRBY', sizes, 'all', '-' .. before) end
local all = redis.call('HINCRBY', sizes, 'all', size)
redis.call('HSET', sizes, name, size)
redis.call('ZADD', order, redis.call('HINCRBY', sizes, 'number', 1), name)
while all > tonumber(ARGV[5]) or redis.call('ZCARD', order) > tonumber(ARGV[6]) do
    local oldest = redis.call('ZRANGE', order, 0, 0)[1]
    all = redis.call('HINCRBY', sizes, 'all', '-' .. redis.call('HGET', sizes, oldest))
    redis.call('HDEL', sizes, oldest)
    redis.call('ZREM', order, oldest)
    redis.call('DEL', prefix .. oldest)
end
for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, math.max(ttl, redis.call('PTTL', key)))
end
"""

Outcome = Literal["hit", "miss", "damaged", "error", "skipped"]

logger = logging.getLogger(__name__)


class CircuitBreaker:
    """A circuit breaker: no calls for a while after failures in a row. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause, self._until = FIRST_PAUSE, 0.0

    def lets_through(self) -> bool:
        """Return whether to call now: of those after a pause the first, which tries it."""
        with self._lock:
            if self._failures < FAILURES:
                return True
            if self._clock() < self._until:
                return False
            self._until = self._clock() + self._pause
            return True

    def note(self, *, failed: bool) -> None:
        """Take in how a call ended."""
        with self._lock:
            if not failed:
                self._failures, self._pause = 0, FIRST_PAUSE
                return
            self._failures += 1
            if self._failures >= FAILURES:
                self._until = self._clock() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)


class RedisAnswers:
    """See `AnswerCache`: answers of a zone's edges."""

    def __init__(
        self,
        url: str,
        *,
        secret: bytes,
        zone: str,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
        max_entries: int = MAX_ENTRIES,
        find_seconds: float = FIND_SECONDS,
        count: Callable[[Outcome], None] = lambda outcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` is redis://…, rediss://… or unix://…; `secret` is the same at all edges of the
        platform; `count` is called on the event loop with how each look-up ended. Raises
        ImportError without redis-py, ValueError for what is no such URL."""
        redis: Any = importlib.import_module("redis")
        retry: Any = importlib.import_module("redis.retry")
        backoff: Any = importlib.import_module("redis.backoff")
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=SERVER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            max_connections=THREADS,
            retry=retry.Retry(backoff.NoBackoff(), 0),
        )
        self._script = self._client.register_script(KEEP)
        self._secret = blake2b(secret, digest_size=32, person=b"skerry answers").digest()
        self._zone = zone
        self._max_tenant_bytes = max_tenant_bytes
        self._max_entries = max_entries
        self._find_seconds = find_seconds
        self._breaker = CircuitBreaker(clock)
        self._room = threading.BoundedSemaphore(MAX_WAITING)
        self._threads = ThreadPoolExecutor(THREADS, "shared answers")
        self._count = count

    async def find(self, tenant: str, key: bytes) -> StoredAnswer | None:
        found = await self.found(tenant, key)
        return None if found is None else found[0]

    async def found(self, tenant: str, key: bytes) -> tuple[StoredAnswer, int] | None:
        """Return an answer, and for how many seconds it is kept yet; None when it is not there in
        time."""
        reading = self._submit(self._read, self._name(tenant, key))
        if reading is None:
            self._count("skipped")
            return None
        outcome: Outcome = "error"
        found = None
        try:
            async with asyncio.timeout(self._find_seconds):
                outcome, found = await asyncio.wrap_future(reading)
        except Exception as error:  # of redis-py, of the socket, or it took too long
            logger.debug("the shared response cache: %s", error or type(error).__name__)
        self._breaker.note(failed=outcome == "error")
        self._count(outcome)
        return found

    def keep(self, tenant: str, ttl_by_key: Mapping[bytes, int], answer: StoredAnswer) -> None:
        names = {self._name(tenant, key): ttl for key, ttl in ttl_by_key.items() if ttl > 0}
        keeping = self._submit(self._keep, names, answer) if names else None
        if keeping is not None:
            keeping.add_done_callback(self._kept)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def _name(self, tenant: str, key: bytes) -> tuple[str, str]:
        """Return what a tenant's keys begin with, and the name of an answer."""
        of_tenant = self._hash(b"tenant", tenant.encode())
        return f"skerry:{self._zone}:{{{of_tenant}}}:", self._hash(of_tenant.encode(), key)

    def _hash(self, of: bytes, data: bytes) -> str:
        return blake2b(of + b"\0" + data, digest_size=16, key=self._secret).hexdigest()

    def _digest(self, name: tuple[str, str], document: bytes) -> bytes:
        digest = blake2b("".join(name).encode(), digest_size=DIGEST_BYTES, key=self._secret)
        digest.update(document)
        return digest.digest()

    # --- on threads -------------------------------------------------------------------------------

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Return what comes of a call; None where the server is left alone."""
        if not self._breaker.lets_through() or not self._room.acquire(blocking=False):
            return None
        try:
            future = self._threads.submit(work, *arguments)
        except RuntimeError:  # it is closed
            self._room.release()
            return None
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _kept(self, keeping: Future[None]) -> None:
        """Take in how an answer was kept; on its thread."""
        if keeping.cancelled():
            return
        error = keeping.exception()
        self._breaker.note(failed=error is not None)
        if error is not None:
            logger.debug("the shared response cache: %s", error or type(error).__name__)

    def _read(self, name: tuple[str, str]) -> tuple[Outcome, tuple[StoredAnswer, int] | None]:
        prefix, own = name
        with self._client.pipeline(transaction=False) as pipeline:
            value, left = pipeline.get(prefix + own).pttl(prefix + own).execute()
        if value is None:
            return "miss", None
        version, digest = value[:1], value[1 : 1 + DIGEST_BYTES]
        document = value[1 + DIGEST_BYTES :]
        if version != VERSION or digest != self._digest(name, document):
            return "damaged", None
        try:
            return "hit", (decode_answer(document), max(0, left // 1000))
        except msgspec.DecodeError:
            return "damaged", None

    def _keep(self, names: Mapping[tuple[str, str], int], answer: StoredAnswer) -> None:
        document = encode_answer(answer)
        if len(document) > min(MAX_ENTRY_BYTES, self._max_tenant_bytes):
            return
        for name, ttl in names.items():
            prefix, own = name
            value = VERSION + self._digest(name, document) + document
            arguments = (prefix, own, ttl * 1000, len(value) + ENTRY_BYTES, self._max_tenant_bytes,
                         self._max_entries, value)  # fmt: skip
            self._script(keys=[f"{prefix}order", f"{prefix}sizes"], args=arguments)


class TieredAnswers:
    """See `AnswerCache`: the edge's own, and behind it one that several share."""

    def __init__(self, own: AnswerCache, shared: RedisAnswers) -> None:
        self._own = own
        self.shared = shared

    async def find(self, tenant: str, key: bytes) -> StoredAnswer | None:
        answer = await self._own.find(tenant, key)
        if answer is None and (found := await self.shared.found(tenant, key)) is not None:
            answer, seconds = found
            if seconds:
                self._own.keep(tenant, {key: seconds}, answer)
        return answer

    def keep(self, tenant: str, ttl_by_key: Mapping[bytes, int], answer: StoredAnswer) -> None:
        self._own.keep(tenant, ttl_by_key, answer)
        self.shared.keep(tenant, ttl_by_key, answer)

    def close(self) -> None:
        self._own.close()
        self.shared.close()
