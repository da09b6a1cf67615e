"""What is the same at every edge of a platform, whatever its home: a stream of JetStream, followed.

The client lives on an event loop of a thread of its own: commands, control planes and edges call it
as plainly as a file. It keeps a picture of all that there is, and says so when that changes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nats.aio.client import Client

from skerry.errors import Unavailable
from skerry_edge.gate.token_file import TokenFile, TokenRecord
from skerry_edge.shared.settings_messages import FILE, REVOKED_SECONDS, TOKEN, file_in, token_in
from skerry_regions.drivers.jetstream.connection import Declared, JetStream
from skerry_regions.drivers.jetstream.follower import StreamFollower
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Stored, Write
from skerry_regions.drivers.jetstream.tables import SETTINGS
from skerry_regions.drivers.jetstream.values import each_of
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.state_url import StateURL
from skerry_regions.zones import GLOBAL

OLDEST_SECONDS = REVOKED_SECONDS / 2  # without contact; then all is read once more
ANSWER_SECONDS = 3.0  # that a call waits
ADD_SECONDS = 600.0  # for 100,000 tokens
LOOK_SECONDS = 1.0
GATHER_SECONDS = 0.02  # in which changes come together
AGAIN_SECONDS = 0.2
CLOSE_SECONDS = 5.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token, and the sequence of its message. Of one that was revoked there is no record."""

    record: TokenRecord | None
    sequence: int


@dataclass(frozen=True, slots=True)
class SharedValue:
    """The content of a file, and the sequence of its message; None: there is none any more."""

    content: bytes | None
    sequence: int


@dataclass(frozen=True, slots=True)
class SettingsPicture:
    """All that the servers have, up to a revision."""

    stream: str  # when it was made
    revision: int
    tokens: dict[str, KnownToken]  # by id, revoked ones too
    files: dict[str, SharedValue]  # by name

    @property
    def token_file(self) -> TokenFile:
        """Return what stands in a home's file, oldest first."""
        records = [each.record for each in self.tokens.values() if each.record is not None]
        records.sort(key=lambda each: (each.created_at, each.id))
        return TokenFile(stream=self.stream, revision=self.revision, tokens=records)


class NatsSettings:
    """See above. Its calls are for any thread but its own."""

    def __init__(
        self,
        url: StateURL,
        on_news: Callable[[SettingsPicture], None] = lambda picture: None,
        *,
        name: str = "skerry",
        declared: Declared = (SETTINGS, GLOBAL),
        make_client: Callable[[], Client] = Client,
    ) -> None:
        """`on_news` is called on a thread with the picture when it is whole for the first time,
        when it has changed, and every second; what it raises is logged. `name` is what the servers
        list the connection as."""
        self._on_news = on_news
        self._jetstream = JetStream(url, name=name, make_client=make_client)
        self._declared = declared
        self._stream = KeyedStream(self._jetstream, *declared)
        self._tokens: dict[str, KnownToken] = {}
        self._files: dict[str, SharedValue] = {}
        self._is_whole = False
        self._was_whole = threading.Event()
        self._news = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="nats settings", daemon=True
        )
        self._follower: StreamFollower | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._taking: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Begin. Servers that are away are waited for in the background. Raises `StateUnfit`."""
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> bool:
        """Wait until `on_news` has taken a first picture in; return whether it has."""
        return self._was_whole.wait(seconds)

    def close(self) -> None:
        """End it. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                self._run(self._close(), CLOSE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            if not self._thread.is_alive():
                self._loop.close()

    def current(self) -> SettingsPicture:
        """Return all that the servers have now. Raises `Unavailable`."""
        return self._run(self._current(), 2 * ANSWER_SECONDS)

    def write(self, write: Write) -> int:
        """Store a message, and return its sequence. Raises `RevisionConflict` where another changed
        the same, `StreamFull`, or `Unavailable`: it may be stored all the same."""
        return self._run(self._write(write), 2 * ANSWER_SECONDS)

    def add(self, writes: Sequence[Write]) -> None:
        """Store messages of keys that have none; others stay. Raises as `write`."""
        self._run(self._add(writes), ADD_SECONDS)

    # --- on its event loop ------------------------------------------------------------------------

    def _run(self, call: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise Unavailable("NATS does not answer in time.") from None

    async def _open(self) -> None:
        await self._jetstream.open(self._declared)
        self._follower = StreamFollower(
            self._stream, self._take, self._lost, oldest_seconds=OLDEST_SECONDS
        )
        self._follower.start()
        self._keeping = asyncio.create_task(self._keep(self._follower), name="settings")

    async def _close(self) -> None:
        await cancel_tasks(self._keeping)
        if self._taking is not None:
            await asyncio.wait([self._taking], timeout=ANSWER_SECONDS)
        if self._follower is not None:
            await self._follower.close()
        await self._jetstream.close()

    async def _current(self) -> SettingsPicture:
        assert self._follower is not None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._follower.caught_up()
        except TimeoutError:
            raise Unavailable("NATS does not answer in time.") from None
        return self._picture(self._follower)

    async def _write(self, write: Write) -> int:
        try:
            return await self._stream.write(write, seconds=ANSWER_SECONDS)
        except RevisionConflict as conflict:
            found = conflict.found
            if found is None and write.expected:  # that it was revoked has expired
                again = Write(write.key, write.data, 0)
                return await self._stream.write(again, seconds=ANSWER_SECONDS)
            if found is None or found.data != write.data:
                raise
            return found.sequence

    async def _add(self, writes: Sequence[Write]) -> None:
        async def add(write: Write) -> None:
            with contextlib.suppress(RevisionConflict):
                await self._stream.write(write, seconds=ANSWER_SECONDS)

        await each_of(writes, add)

    def _picture(self, follower: StreamFollower) -> SettingsPicture:
        return SettingsPicture(
            follower.created, follower.seen, dict(self._tokens), dict(self._files)
        )

    def _take(self, stored: Stored) -> None:
        kind, _, name = stored.key.partition(".")
        self._news.set()
        if kind == TOKEN:
            self._tokens[name] = KnownToken(token_in(stored.data), stored.sequence)
        elif kind == FILE:
            self._files[name] = SharedValue(file_in(stored.data), stored.sequence)

    def _lost(self) -> None:
        """Begin a new picture. What `on_news` was given last stands until it is whole."""
        self._tokens.clear()
        self._files.clear()
        self._is_whole = False
        self._news.set()

    async def _keep(self, follower: StreamFollower) -> None:
        while True:
            try:
                await follower.caught_up()
                self._is_whole = True
            except Unavailable:
                await asyncio.sleep(AGAIN_SECONDS)
            picture = self._picture(follower)
            while self._is_whole:
                await self._pass_on(picture)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._news.wait()
                    await asyncio.sleep(GATHER_SECONDS)
                    self._news.clear()
                    picture = self._picture(follower)

    async def _pass_on(self, picture: SettingsPicture) -> None:
        """Have `on_news` take a picture in. What fails is tried again."""
        self._taking = asyncio.ensure_future(asyncio.to_thread(self._on_news, picture))
        try:
            await asyncio.shield(self._taking)
            self._was_whole.set()
        except (Unavailable, RevisionConflict) as error:
            logger.warning("what all edges share: %s", error)
        except Exception:  # of a full disk, say
            logger.exception("what all edges share")
