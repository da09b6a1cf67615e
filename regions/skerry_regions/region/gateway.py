"""An edge that stands for its region: streams of other regions' edges come in as to a node.

    other edge ── Submit ──▶ NodeServer ──▶ RegionGateway ──▶ RemoteRegion (nodes of this region)
               ◀── Report(summary) ──┘

What comes in is never sent on to a third region. When this region's nodes fail it, it fails back
soon: the edge that it came from knows the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from skerry.errors import InternalError, ModelNotFound, SkerryError, Unavailable
from skerry_regions import zones as residency
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.region.directory import Directory
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.region_reports import RegionReports
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.region.remote_stream import RemoteStream
from skerry_regions.wire.client import NO_USAGE, failed_event
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.node_connection import AnsweredCall
from skerry_regions.wire.protocol import (
    Accepted,
    AnyEvent,
    Done,
    Embed,
    Embedded,
    EngineBeat,
    Failed,
    ShareKV,
    Submit,
)
from skerry_regions.wire.reports import Report

logger = logging.getLogger(__name__)

AnswerCall = Callable[[EdgeCall, Callable[[EdgeAnswer | Failed], None]], AnsweredCall]

POLICY = RecoveryPolicy(start_patience=0.0, patience=0.5)


def edge_links(directory: Directory, zone: str) -> list[NodeLink]:
    """Return links to the edges of a zone that stand for other regions."""
    members = directory.members.items()
    links = [directory.link(id_) for id_, member in members if member.kind == "edge"]
    return [link for link in links if link is not None and link.zone == zone]


class RegionGateway:
    """`Serving` for a `NodeServer`, in front of a region. Lives on one event loop."""

    def __init__(
        self,
        edge: str,
        zone: str,
        region: RemoteRegion,
        reports: RegionReports,
        answer: AnswerCall | None = None,
    ) -> None:
        """`reports` makes a summary for each model; `answer` begins to answer the clients of edges
        of other zones."""
        self._edge, self._zone = edge, zone
        self._answer = answer
        self._region = region
        self._reports = reports
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(
        self, submit: Submit, sink: Callable[[Accepted | AnyEvent], None]
    ) -> ForwardedStream:
        """See `Node.submit`; what the region refuses comes as `Failed`. Raises ResidencyUnmet."""
        residency.check(submit.residency, self._zone, f"edge {self._edge}")
        stream = ForwardedStream(self._region, submit, sink)
        self._keep(stream.task)
        return stream

    def embed(self, embed: Embed, sink: Callable[[Embedded | Failed], None]) -> ForwardedEmbed:
        """See `Node.embed`; what the region refuses comes as `Failed`. Raises ResidencyUnmet."""
        residency.check(embed.residency, self._zone, f"edge {self._edge}")
        request = ForwardedEmbed(self._region, embed, sink)
        self._keep(request.task)
        return request

    def call(self, call: EdgeCall, sink: Callable[[EdgeAnswer | Failed], None]) -> AnsweredCall:
        """Answer a client of another edge. Raises Unavailable."""
        if self._answer is None:
            raise Unavailable(f"edge {self._edge} answers no other edge's clients")
        return self._answer(call, sink)

    def share(self, share: ShareKV) -> None:
        """Raises Unavailable: KV stays in its region."""
        raise Unavailable(f"edge {self._edge} has no KV to share")

    def beats(self) -> list[EngineBeat]:
        """Return nothing: whether an engine hangs is for this edge to notice."""
        return []

    def reports(self) -> list[Report]:
        return self._reports()

    def snapshots(self) -> list[Report]:
        return self._reports.snapshots()

    async def close(self) -> None:
        """Fail what runs."""
        await cancel_tasks(*self._tasks)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class ForwardedStream:
    """A stream of another edge. Ends with exactly one `Done` or `Failed`."""

    is_accepted = False  # `Accepted` comes when a node has taken it

    def __init__(
        self, region: RemoteRegion, submit: Submit, sink: Callable[[Accepted | AnyEvent], None]
    ) -> None:
        self._submit, self._sink = submit, sink
        self._stream: RemoteStream | None = None
        self._aborted = False
        self.task = asyncio.create_task(self._pass_on(region), name="forwarded stream")
        self.task.add_done_callback(self._end)

    def abort(self) -> None:
        """Stop it; its last event still comes. Idempotent, never fails."""
        self._aborted = True
        if self._stream is not None:
            self._stream.abort()
        else:
            self.task.cancel()

    def _end(self, task: asyncio.Task[Done]) -> None:
        number = self._submit.stream
        if self._stream is not None:
            self._stream.abort()
        if task.cancelled() and self._aborted:
            self._sink(Done(stream=number, finish_reason="cancelled", usage=NO_USAGE))
        elif (refusal := _refusal(task, self._submit.request_id)) is not None:
            self._sink(failed_event(number, refusal))
        else:
            self._sink(task.result())

    async def _pass_on(self, region: RemoteRegion) -> Done:
        """Pass on all events but the last, and return that."""
        number = self._submit.stream
        self._stream = await region.generate(self._submit)
        self._sink(Accepted(stream=number))
        async for event in self._stream:
            event = replace(event, stream=number)
            if isinstance(event, Done):
                return event
            self._sink(event)
        raise Unavailable("the stream ended before its end")


class ForwardedEmbed:
    """An embedding for another edge. Ends with `Embedded` or `Failed`."""

    def __init__(
        self, region: RemoteRegion, embed: Embed, sink: Callable[[Embedded | Failed], None]
    ) -> None:
        self._embed, self._sink = embed, sink
        self.task = asyncio.create_task(region.embed(embed), name="forwarded embedding")
        self.task.add_done_callback(self._end)

    def abort(self) -> None:
        """Stop it; its last event still comes. Idempotent, never fails."""
        self.task.cancel()

    def _end(self, task: asyncio.Task[bytes]) -> None:
        number = self._embed.stream
        if (refusal := _refusal(task, self._embed.request_id)) is not None:
            self._sink(failed_event(number, refusal))
        else:
            self._sink(Embedded(stream=number, vectors=task.result()))


def _refusal(task: asyncio.Task[Any], request_id: str) -> SkerryError | None:
    """Return the error of a task that ended badly; None of one that ended well."""
    if task.cancelled():
        return Unavailable("the edge is shutting down")
    match error := task.exception():
        case None:
            return None
        case ModelNotFound():  # other regions may have it
            return Unavailable(error.message)
        case SkerryError():
            return error
        case _:
            logger.error("request %s failed on its way through", request_id, exc_info=error)
            return InternalError("the request failed on its way through its region")
