"""Following a stream: the last message of each key, then what changes.

A consumer may fall silent without a word, after its server died or a connection was made again
(nats.go #1094). So every few seconds the stream's last sequence is read at its leader, and where
something was missed, a new consumer goes on behind what came last.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.msg import Msg

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import JetStreamError
from skerry_regions.drivers.jetstream.stream import ID_HEADER, KeyedStream, Stored
from skerry_regions.process.cancellation import cancel_tasks

LOOK_SECONDS = 2.0  # twice of which is silence
INACTIVE_NANOSECONDS = 30_000_000_000  # after which servers forget a consumer that none listens to

logger = logging.getLogger(__name__)


class StreamFollower:
    """Calls `on_stored` with what a stream has and gets, from `start` to `close`."""

    def __init__(
        self,
        stream: KeyedStream,
        on_stored: Callable[[Stored], None],
        on_lost: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        oldest_seconds: float = math.inf,
    ) -> None:
        """`on_lost` is called when all comes once more: the stream was made again, or there was no
        contact for `oldest_seconds`, in which what says that a key is gone may have expired."""
        self._stream = stream
        self._on_stored = on_stored
        self._on_lost = on_lost
        self.seen = 0
        """The sequence up to which all has come."""
        self.created = ""
        """When the stream was made, as of the last look at it."""
        self._upto = 0  # what was there when the consumer was made
        self._moved = asyncio.Event()  # `seen` did
        self._end: Callable[[], Awaitable[None]] | None = None
        self._following: asyncio.Task[None] | None = None
        self._clock = clock
        self._oldest_seconds = oldest_seconds
        self.contact_at = clock()
        """The time at which all that was stored had come; until then, that of the start."""

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow(), name=f"follow {self._stream.name}")

    async def caught_up(self) -> None:
        """Wait until all has come that is stored now. Raises `Unavailable`."""
        state = await self._stream.state()
        if not self.created:  # all of an empty stream has come before `_follow` has looked
            self.created = state.created
        while self.seen < state.last_sequence:
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        await cancel_tasks(self._following)
        await self._leave()

    async def _follow(self) -> None:
        pause, last_missed = 0.0, 0
        while True:
            looked_at, seen = self._clock(), self.seen  # more may come before the answer does
            try:
                state = await self._stream.state()
                last = state.last_sequence
                is_another = self.created not in ("", state.created)
                if is_another or last < seen:
                    logger.error("%s has lost what it had acknowledged", self._stream.name)
                    await self._begin_anew()
                elif looked_at - self.contact_at > self._oldest_seconds:
                    self.contact_at = looked_at
                    await self._begin_anew()
                self.created = state.created
                if self._end is None or last_missed > self.seen:
                    await self._leave()
                    await self._begin(last)
                if self.seen >= last:
                    self.contact_at, last_missed, pause = looked_at, 0, 0.0
                else:
                    last_missed = last
            except (Unavailable, JetStreamError) as error:
                logger.debug("%s is not followed now: %s", self._stream.name, error)
                pause = min(LOOK_SECONDS, 2 * pause + 0.1)
            await asyncio.sleep(pause or LOOK_SECONDS)

    async def _begin_anew(self) -> None:
        await self._leave()
        self.seen = 0
        self._on_lost()

    async def _begin(self, last: int) -> None:
        """Have a consumer of what comes behind what was seen."""
        inbox, end = await self._stream.jetstream.subscribe(self._take)
        self._end, self._upto = end, last
        config: dict[str, Any] = {
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "filter_subject": self._stream.subject(">"),
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_NANOSECONDS,
        }
        if self.seen:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.seen + 1}
        try:
            info = await self._stream.jetstream.call(
                f"CONSUMER.CREATE.{self._stream.name}",
                {"stream_name": self._stream.name, "config": config},
            )
        except BaseException:
            await self._leave()
            raise
        if not info["num_pending"] and not info["delivered"]["consumer_seq"]:
            self._move(last)  # what was up to there is deleted

    async def _leave(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            await end()

    def _take(self, message: Msg) -> None:
        metadata = message.metadata
        sequence = metadata.sequence.stream
        if sequence <= self.seen:
            return
        headers = message.headers or {}
        key = message.subject.removeprefix(f"{self._stream.name}.")
        try:
            self._on_stored(Stored(key, message.data, sequence, headers.get(ID_HEADER, "")))
        except Exception:  # of one message, of whatever version: the others are there all the same
            logger.exception("%s: a message of %s", self._stream.name, key)
        # Behind the last of those that were there when the consumer was made nothing is to come.
        self._move(sequence if metadata.num_pending else max(sequence, self._upto))

    def _move(self, sequence: int) -> None:
        self.seen = max(self.seen, sequence)
        self._moved.set()
