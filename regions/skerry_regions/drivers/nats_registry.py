"""The registry of many machines: a JetStream key-value bucket of a NATS server (extra `nats`).

A record carries the length of its lease. Every reader counts it by its own clock from when it sees
the renewal, so machines need not agree on the hour; a reader that has just begun gives everybody a
whole lease. What is kept is soft state: a server that lost it gets it again with the next renewals.

The client lives on an event loop of a thread of its own, so that this is as plain to call as any
other registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KV_DEL, KV_PURGE, KeyValue

from skerry_regions.drivers.nats_tls import nats_reason
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.registry import LEASE_SECONDS, Member, RegistryUnavailable
from skerry_regions.state_url import StateURL

logger = logging.getLogger(__name__)

BUCKET = "skerry-registry"
KEEP_SECONDS = 600.0  # at the server, without a renewal; longer leases are written again
ANSWER_SECONDS = 3.0  # for one call, connecting included
CLOSE_SECONDS = 1.0
URL_OPTIONS = ("certificates",)
ATTEMPTS = 8  # at one record, while others write it

T = TypeVar("T")


class MemberRecord(Struct, frozen=True, array_like=True):
    """What is stored under a member's key."""

    lease_seconds: float
    member: Member


class NatsRegistry:
    """See `Registry`. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        bucket: str = BUCKET,
        clock: Callable[[], float] = time.monotonic,
        make_client: Callable[[], Client] = Client,
    ) -> None:
        """`url` is as `StateURL` says. Clients of servers of tls:// are encrypted ones: see
        `nats_tls`. Raises ValueError.

        The server is called when it is first needed: a node that starts while it is away serves
        whoever knows it, and is in the registry when that is back.
        """
        parsed = StateURL.parse(url, options=URL_OPTIONS)
        assert parsed is not None, "there is no file of members here"
        self._url = parsed
        self._bucket = bucket
        self._clock = clock
        self._make_client = make_client
        self._connection: NatsConnection | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="nats registry", daemon=True
        )
        self._thread.start()

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        record = MemberRecord(lease_seconds, member)
        return self._run(lambda connection: connection.announce(record))

    def withdraw(self, member_id: str, incarnation: int) -> None:
        self._run(lambda connection: connection.withdraw(member_id, incarnation))

    def members(self) -> list[Member]:
        return self._run(lambda connection: connection.members())

    def close(self) -> None:
        with self._lock:
            if self._loop.is_closed():
                return
            if self._connection is not None:
                self._wait(self._connection.close())
            self._wait(_end_tasks())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, call: Callable[[NatsConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a call. A connection that failed is not used again: the next call opens another."""
        with self._lock:
            try:
                return self._wait(self._called(call))
            except (NatsError, OSError, TimeoutError) as error:
                broken, self._connection = self._connection, None
                if broken is not None:
                    self._wait(broken.close())
                    self._wait(_end_tasks())
                raise RegistryUnavailable(f"{self._url}: {nats_reason(error)}") from error

    async def _called(self, call: Callable[[NatsConnection], Coroutine[Any, Any, T]]) -> T:
        async with asyncio.timeout(ANSWER_SECONDS):
            if self._connection is None:
                client = self._make_client()
                self._connection = await NatsConnection.open(
                    client, self._url, self._bucket, self._clock
                )
            return await call(self._connection)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class NatsConnection:
    """One connection to the server, and what has been seen of the bucket over it."""

    def __init__(self, client: Client, bucket: KeyValue, clock: Callable[[], float]) -> None:
        self._client = client
        self._bucket = bucket
        self._clock = clock
        self._unread: set[str] = set()  # keys of records that cannot be read, and this was logged
        self._seen: dict[str, tuple[Member, float]] = {}  # by key, with the end of the lease
        self._revision = 0  # of what has been seen last
        self._changed = asyncio.Condition()
        self._following: asyncio.Task[None] | None = None
        self._decoder = msgspec.msgpack.Decoder(MemberRecord)

    @classmethod
    async def open(
        cls, client: Client, url: StateURL, bucket: str, clock: Callable[[], float]
    ) -> NatsConnection:
        """Connect, and return once it is up to date."""
        try:
            await client.connect(
                [*url.servers],
                user=url.user,
                password=url.password,
                token=url.token,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # 0 would be: for ever
                reconnect_time_wait=0,
                connect_timeout=math.ceil(ANSWER_SECONDS),
                error_cb=_ignore,
            )
            stream = client.jetstream()
            connection = cls(client, await _bucket(stream, bucket), clock)
            await connection._follow()
        except BaseException:  # one that never greeted has a socket, too
            await _close(client)
            raise
        return connection

    async def announce(self, record: MemberRecord) -> int:
        key, value = _key(record.member.id), msgspec.msgpack.encode(record)
        for _ in range(ATTEMPTS):
            known = await self._get(key)
            with contextlib.suppress(KeyWrongLastSequenceError):  # somebody was faster
                if known is None:
                    written = await self._bucket.create(key, value)
                elif known[1] > record.member.incarnation:
                    return known[1]
                else:
                    written = await self._bucket.update(key, value, known[0])
                await self._seen_up_to(written)
                return record.member.incarnation
        raise TimeoutError(f"{record.member.id} is written by too many at once")

    async def withdraw(self, member_id: str, incarnation: int) -> None:
        key = _key(member_id)
        for _ in range(ATTEMPTS):
            known = await self._get(key)
            if known is None or known[1] > incarnation:
                return
            with contextlib.suppress(KeyWrongLastSequenceError):
                await self._bucket.delete(key, last=known[0])
                return
        raise TimeoutError(f"{member_id} is written by too many at once")

    async def members(self) -> list[Member]:
        """Return them as of all that was written before the call."""
        await self._seen_up_to((await self._bucket.status()).stream_info.state.last_seq)
        now = self._clock()
        living = [member for member, until in self._seen.values() if until > now]
        return sorted(living, key=lambda member: member.id)

    async def close(self) -> None:
        await cancel_tasks(self._following)
        await _close(self._client)

    async def _get(self, key: str) -> tuple[int, int] | None:
        """Return revision and incarnation of a record that is there; the least incarnation of one
        that cannot be read."""
        try:
            entry = await self._bucket.get(key)
        except KeyNotFoundError:
            return None
        assert entry.revision is not None
        record = self._read(entry)
        return entry.revision, record.member.incarnation if record is not None else 0

    async def _follow(self) -> None:
        """Take in what there is, and go on with what changes."""
        state = (await self._bucket.status()).stream_info.state
        watcher = await self._bucket.watchall()
        updates = cast(Callable[[], Awaitable[object]], watcher.updates)  # published untyped
        is_all = not state.messages
        while not is_all:
            entry = await updates()
            # None is to say that this is all, and also comes where all is sent and none is here.
            if isinstance(entry, KeyValue.Entry):
                self._take(entry)
                is_all = not entry.delta
        self._revision = max(self._revision, state.last_seq)
        self._following = asyncio.create_task(self._follow_on(watcher), name="follow registry")

    async def _follow_on(self, watcher: KeyValue.KeyWatcher) -> None:
        async for entry in watcher:
            if entry is not None:
                self._take(entry)
            async with self._changed:
                self._changed.notify_all()

    def _take(self, entry: KeyValue.Entry) -> None:
        is_gone = entry.operation in (KV_DEL, KV_PURGE)
        record = None if is_gone else self._read(entry)
        if record is None:
            self._seen.pop(entry.key, None)
        else:
            self._seen[entry.key] = record.member, self._clock() + record.lease_seconds
        self._revision = max(self._revision, entry.revision or 0)

    def _read(self, entry: KeyValue.Entry) -> MemberRecord | None:
        """Read a record; None of one that another version of Skerry wrote: the others are there all
        the same."""
        try:
            record = self._decoder.decode(entry.value or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if entry.key not in self._unread:
                logger.warning("the record of %s cannot be read: %s", _written(entry.key), error)
            self._unread.add(entry.key)
            return None
        self._unread.discard(entry.key)
        return record

    async def _seen_up_to(self, revision: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._revision >= revision)


async def _bucket(stream: JetStreamContext, name: str) -> KeyValue:
    """Open the bucket; whoever comes first makes it."""
    config = KeyValueConfig(bucket=name, history=1, ttl=KEEP_SECONDS, storage=StorageType.MEMORY)
    return await stream.create_key_value(config)


async def _close(client: Client) -> None:
    with contextlib.suppress(NatsError, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):  # the server may read no more
            await client.close()


async def _end_tasks() -> None:
    """End tasks of the client, which leaves some of its own running."""
    await cancel_tasks(*(asyncio.all_tasks() - {asyncio.current_task()}))


def _key(member_id: str) -> str:
    """Return the key of an id, which may have characters that keys may not."""
    return member_id.encode().hex()


def _written(key: str) -> str:
    """Return an id as its key has it, for a reader; keys of others as they are."""
    try:
        return repr(bytes.fromhex(key).decode())
    except ValueError:
        return key


async def _ignore(error: Exception) -> None:
    """Ignore it: what goes wrong in the background shows at the next call."""
