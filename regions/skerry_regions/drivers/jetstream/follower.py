"""Following a stream: the last message of each key, then what changes.

A consumer may fall silent without a word, after its server died or a connection was made again
(nats.go #1094). So every few seconds the stream's last sequence is read at its leader, and where
something was missed, a new consumer goes on behind what came last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.msg import Msg

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import JetStreamError
from skerry_regions.drivers.jetstream.stream import ID_HEADER, KeyedStream, Stored

LOOK_SECONDS = 2.0  # twice of which is silence
MAX_PAUSE_SECONDS = 5.0
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
    ) -> None:
        """`on_lost` is called when the stream has begun anew: sequences went back."""
        self._stream = stream
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._seen = 0  # sequence
        self._end: Callable[[], Awaitable[None]] | None = None
        self._following: asyncio.Task[None] | None = None
        self._clock = clock
        self.contact_at = clock()
        """When all that was stored had come; before it did for the first time, when it began."""

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow(), name=f"follow {self._stream.name}")

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._leave()

    async def _follow(self) -> None:
        pause, last_missed = 0.0, 0
        while True:
            looked_at = self._clock()
            try:
                last = (await self._stream.state()).last_sequence
                if last < self._seen:
                    logger.error("%s has lost what it had acknowledged", self._stream.name)
                    self._seen = 0
                    self._on_lost()
                    await self._leave()
                if self._end is None or last_missed > self._seen:
                    await self._leave()
                    await self._begin(last)
                if self._seen >= last:
                    self.contact_at, last_missed, pause = looked_at, 0, 0.0
                else:
                    last_missed = last
            except (Unavailable, JetStreamError) as error:
                logger.debug("%s is not followed now: %s", self._stream.name, error)
                pause = min(MAX_PAUSE_SECONDS, 2 * pause + 0.1)
            await asyncio.sleep(pause or LOOK_SECONDS)

    async def _begin(self, last: int) -> None:
        """Have a consumer of what comes behind what was seen."""
        inbox, end = await self._stream.jetstream.subscribe(self._take)
        self._end = end
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
        if self._seen:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._seen + 1}
        info = await self._stream.jetstream.call(
            f"CONSUMER.CREATE.{self._stream.name}",
            {"stream_name": self._stream.name, "config": config},
        )
        if not info["num_pending"] and not info["delivered"]["consumer_seq"]:
            self._seen = max(self._seen, last)  # what was up to there is deleted

    async def _leave(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            await end()

    def _take(self, message: Msg) -> None:
        sequence = message.metadata.sequence.stream
        if sequence <= self._seen:
            return
        headers = message.headers or {}
        key = message.subject.removeprefix(f"{self._stream.name}.")
        self._seen = sequence
        try:
            self._on_stored(Stored(key, message.data, sequence, headers.get(ID_HEADER, "")))
        except Exception:  # of one message, of whatever version: the others are there all the same
            logger.exception("%s: a message of %s", self._stream.name, key)
