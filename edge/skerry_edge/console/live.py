"""What pages follow while they are open: one stream each, and what it carries is made once for all.

    traces that end ─▶ Channel ── twice a second ─▶ one frame ─▶ every Viewer of the channel

A stream begins with a snapshot and goes on with deltas, whose numbers have no gap. A viewer holds
one frame; one that is slower gets a snapshot next. Without a viewer there is no channel, no task
and nothing that a request would have to do with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import msgspec

from skerry.errors import RateLimited
from skerry_edge.console.fleet import FleetChannel
from skerry_edge.console.rows import RequestRow, row_of
from skerry_edge.telemetry.trace_store import EndedTrace, TraceStore
from skerry_regions.region.region_figures import SeenFleet

BEAT_SECONDS = 0.5
SILENT_BEATS = 2  # after which an empty delta says that nothing happened
MAX_ROWS = 100  # of a frame
MAX_STREAMS = 64
MAX_STREAMS_OF_HOLDER = 8

_encode = msgspec.json.Encoder().encode


class Channel(Protocol):
    """What the viewers of one kind follow. Lives on the event loop."""

    def snapshot(self) -> Mapping[str, object]:
        """Return all that a viewer needs to begin with."""
        ...

    def news(self) -> Mapping[str, object]:
        """Return what came since the last call; empty where nothing did."""
        ...

    def close(self) -> None:
        """Follow nothing any longer."""


class RequestChannel:
    """The requests of one account, as they end."""

    def __init__(self, traces: TraceStore, account: str) -> None:
        self._traces = traces
        self._account = account
        self._new: list[EndedTrace] = []
        self._more = 0  # that ended beyond `MAX_ROWS`
        traces.watch(self._hear)

    def snapshot(self) -> Mapping[str, object]:
        """See `Channel`: the last requests, the newest first."""
        last = self._traces.last(self._account, MAX_ROWS)
        return {"requests": [self._row(each) for each in last]}

    def news(self) -> Mapping[str, object]:
        """See `Channel`: requests that ended, the newest first, and how many more there were."""
        new, self._new, more, self._more = self._new, [], self._more, 0
        if not new:
            return {}
        rows = [self._row(each) for each in reversed(new)]
        return {"requests": rows} | ({"more": more} if more else {})

    def close(self) -> None:
        """See `Channel`."""
        self._traces.unwatch(self._hear)

    def _hear(self, ended: EndedTrace) -> None:
        if ended.tenant != self._account:
            return
        if len(self._new) < MAX_ROWS:
            self._new.append(ended)
        else:
            self._more += 1

    def _row(self, ended: EndedTrace) -> RequestRow:
        return row_of(self._traces.record_of(ended))


class Viewer:
    """One page that follows a channel; `is_welcome` says whether it still may."""

    def __init__(self, key: tuple[str, str], holder: str, is_welcome: Callable[[], bool]) -> None:
        self.key = key
        self.holder = holder
        self.is_welcome = is_welcome
        self._frame: bytes | None = None
        self._is_behind = True  # at first
        self._is_over = False
        self._news = asyncio.Event()
        self._news.set()

    def give(self, frame: bytes) -> None:
        """Send a frame next; where one waits already, both are replaced by a snapshot."""
        self._is_behind = self._is_behind or self._frame is not None
        self._frame = frame
        self._news.set()

    def end(self) -> None:
        """End the stream."""
        self._is_over = True
        self._news.set()

    async def frames(self, snapshot: Callable[[], bytes]) -> AsyncGenerator[bytes]:
        """Yield what is to be sent, as it comes."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_over:
                yield b"event: end\ndata: {}\n\n"
                return
            frame, self._frame = self._frame, None
            if self._is_behind:
                self._is_behind, frame = False, snapshot()
            if frame is not None:
                yield frame


class _Followed:
    """A channel with its viewers, and the number of its last frame."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.viewers: set[Viewer] = set()
        self.number = 0
        self.silent = 0  # beats


class Live:
    """All channels of an edge that somebody follows, by view and account. On one event loop."""

    def __init__(
        self,
        traces: TraceStore,
        wall_clock: Callable[[], float],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._traces = traces
        self._wall_clock = wall_clock
        self._is_ending = is_ending
        self._followed: dict[tuple[str, str], _Followed] = {}
        self._streams: Counter[str] = Counter()  # by holder
        self._beating: asyncio.Task[None] | None = None

    def requests(
        self, account: str, holder: str, is_welcome: Callable[[], bool]
    ) -> AsyncGenerator[bytes]:
        """Return the stream of an account's requests. Raises RateLimited beyond the bounds."""
        viewer = Viewer(("requests", account), holder, is_welcome)
        return self._follow(viewer, lambda: RequestChannel(self._traces, account))

    def fleet(
        self, look: Callable[[], SeenFleet], holder: str, is_welcome: Callable[[], bool]
    ) -> AsyncGenerator[bytes]:
        """Return the stream of regions and nodes. Raises RateLimited beyond the bounds."""
        viewer = Viewer(("regions", ""), holder, is_welcome)
        return self._follow(viewer, lambda: FleetChannel(look, self._wall_clock))

    def _follow(self, viewer: Viewer, new_channel: Callable[[], Channel]) -> AsyncGenerator[bytes]:
        if not self._has_room(viewer.holder):
            raise RateLimited(
                f"Too many pages follow this edge: {MAX_STREAMS_OF_HOLDER} of one login, "
                f"{MAX_STREAMS} in all. Close some."
            )
        return self._stream(viewer, new_channel)

    def _has_room(self, holder: str) -> bool:
        return self._streams.total() < MAX_STREAMS and self._streams[holder] < MAX_STREAMS_OF_HOLDER

    async def _stream(
        self, viewer: Viewer, new_channel: Callable[[], Channel]
    ) -> AsyncGenerator[bytes]:
        if not self._has_room(viewer.holder):  # others came while the answer began
            return
        self._streams[viewer.holder] += 1
        try:
            followed = self._followed.get(viewer.key)
            if followed is None:
                followed = self._followed[viewer.key] = _Followed(new_channel())
            followed.viewers.add(viewer)
            if self._beating is None:
                self._beating = asyncio.create_task(self._beat(), name="console")
            async for frame in viewer.frames(lambda: self._snapshot(followed)):
                yield frame
        finally:
            self._streams[viewer.holder] -= 1
            self._streams += Counter()  # without those at nothing
            self._leave(viewer)

    def _leave(self, viewer: Viewer) -> None:
        followed = self._followed.get(viewer.key)
        if followed is None:
            return
        followed.viewers.discard(viewer)
        if not followed.viewers:
            followed.channel.close()
            del self._followed[viewer.key]

    def _snapshot(self, followed: _Followed) -> bytes:
        return self._framed("snapshot", followed.number, followed.channel.snapshot())

    async def _beat(self) -> None:
        """Make the frames, for as long as there are viewers."""
        while self._followed:
            await asyncio.sleep(BEAT_SECONDS)
            for followed in list(self._followed.values()):
                self._look(followed)
        self._beating = None

    def _look(self, followed: _Followed) -> None:
        for viewer in [*followed.viewers]:
            if self._is_ending() or not viewer.is_welcome():
                viewer.end()
        news = followed.channel.news()
        followed.silent = 0 if news else followed.silent + 1
        if not news and followed.silent < SILENT_BEATS:
            return
        followed.silent = 0
        followed.number += 1
        frame = self._framed("delta", followed.number, news)
        for viewer in followed.viewers:
            viewer.give(frame)

    def _framed(self, event: str, number: int, content: Mapping[str, object]) -> bytes:
        told = {"seq": number, "at": round(self._wall_clock(), 3), **content}
        return b"event: %b\ndata: %b\n\n" % (event.encode(), _encode(told))
