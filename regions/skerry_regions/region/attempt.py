"""One try at a request, on one route."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from skerry.errors import CapacityError
from skerry_regions.region.attempt_record import AttemptRecord
from skerry_regions.region.placer import KVFetch, Route
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import (
    Accepted,
    Done,
    Event,
    Failed,
    HandOverFrom,
    HandOverTo,
    PhaseUsage,
    ShareKV,
    Submit,
    Tokens,
)


class Attempt:
    """One try at a request on one route, and the events of its nodes that are not read yet.

    On a split route both nodes are submitted at once, the decode node with the order to wait for
    the KV. The first token comes from whoever has it first; the decode node's stream is whole by
    itself, so once it speaks, what the prefill node fails at changes nothing. Until then either
    one's failure is the attempt's: the KV may not have arrived.
    """

    def __init__(
        self, route: Route, submit: Submit, lease_seconds: float, record: AttemptRecord
    ) -> None:
        self.route = route
        self.record = record
        self.prefill_usage: PhaseUsage | None = None
        self.blamed = route.decode.node  # for a failure
        self._events: deque[Accepted | Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[tuple[NodeLink, int]] = []
        self._last: Done | None = None  # of the decode node, while the prefill node owes its part
        self._prefilling = route.prefill is not None
        self._begun: set[str] = set()  # nodes whose first tokens came
        self._unaccepted = 0
        try:
            self._start_parts(route, submit, lease_seconds)
        except BaseException:
            self.forget()
            raise
        if route.watcher is not None:
            route.watcher.started()

    def _start_parts(self, route: Route, submit: Submit, lease_seconds: float) -> None:
        """Submit to one node or two. Raises CapacityError when one takes nothing."""
        fetched = None if route.fetch is None else _fetch(route.fetch, submit)
        if route.prefill is None:
            self._start(route.decode, replace(submit, hand_over_from=fetched), self._push)
            return
        transfer, token = _new_transfer()
        source = HandOverFrom(transfer=transfer, token=token, lease_seconds=lease_seconds)
        self._start(route.decode, replace(submit, hand_over_from=source), self._push)
        whole = submit.sampling.max_tokens
        to = HandOverTo(
            address=route.kv_address, transfer=transfer, token=token, max_tokens=whole,
            machine=route.decode.machine,
        )  # fmt: skip
        max_tokens = min(len(submit.output_ids) + 1, submit.sampling.max_tokens)
        one_token = replace(submit.sampling, max_tokens=max_tokens)
        first = replace(submit, sampling=one_token, hand_over_to=to, hand_over_from=fetched)
        self._start(route.prefill, first, self._push_prefill)

    def _start(
        self, link: NodeLink, submit: Submit, sink: Callable[[Accepted | Event], None]
    ) -> None:
        self._parts.append((link, link.submit(submit, sink)))
        self._unaccepted += 1

    async def accepted(self) -> Failed | None:
        """Wait until nodes have taken the request; return the failure when they do not.

        Tokens say so too, and are left to be read: the decode node's overtake what the prefill
        node sends when the link to that one is slow.
        """
        event = await self.next()
        if isinstance(event, Failed):
            return event
        if not isinstance(event, Accepted):
            self._events.appendleft(event)
        return None

    async def next(self) -> Accepted | Event:
        """Return the next event, in order. Cancelling the wait loses none."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    def abort(self) -> None:
        """Stop it; its last event still comes."""
        for link, stream in self._parts:
            link.abort(stream)

    def forget(self) -> None:
        """Stop it, and drop what is not read yet."""
        for link, stream in self._parts:
            link.forget(stream)
        self._note_end()

    def _push(self, event: Accepted | Event) -> None:
        """Push an event of the decode node, whose last event is the attempt's. What that found
        cached of the prompt was handed over to it."""
        node = self.route.decode.node
        self._note_first(event, node)
        if isinstance(event, Tokens) and event.prompt is not None and self.route.prefill:
            event = replace(event, prompt=None)
        if isinstance(event, Done | Failed):
            self._note_end()
        if isinstance(event, Done):
            self.record.add_timeline(node, event.timeline)
            self.record.end(time.monotonic(), event.finish_reason)
        if isinstance(event, Done) and self._prefilling:
            self._last = event
        else:
            self._add(event)

    def _add(self, event: Accepted | Event) -> None:
        if isinstance(event, Accepted):
            self._unaccepted -= 1
            if self._unaccepted:
                return
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _push_prefill(self, event: Accepted | Event) -> None:
        """Push an event of the prefill node: its tokens, and a failure before the decode node has
        spoken."""
        assert self.route.prefill is not None
        node = self.route.prefill.node
        self._note_first(event, node)
        match event:
            case Done():
                self.prefill_usage = event.usage
                self.record.add_timeline(node, event.timeline)
                self._end_prefill()
            case Failed() if self.route.decode.node in self._begun or self._last is not None:
                self._end_prefill()
            case Failed():
                self.blamed = node
                self._add(event)
            case _:
                self._add(event)

    def _end_prefill(self) -> None:
        self._prefilling = False
        if self._last is not None:
            self._add(self._last)

    def _note_first(self, event: Accepted | Event, node: str) -> None:
        if node in self._begun or not (isinstance(event, Tokens) and event.token_ids):
            return
        self._begun.add(node)
        if self.record.first_tokens is None:
            self.record.first_tokens = time.monotonic()
        if self.route.watcher is not None:
            self.route.watcher.first_tokens(node)

    def _note_end(self) -> None:
        if self.route.watcher is not None:
            self.route.watcher.ended()


def _new_transfer() -> tuple[int, bytes]:
    """Return the number and the secret of a new transfer of KV."""
    return secrets.randbits(62), secrets.token_bytes(32)


def _fetch(fetch: KVFetch, submit: Submit) -> HandOverFrom | None:
    """Have the blocks sent; return what the node that computes must know of it.

    None when their holder cannot be reached: then it computes all.
    """
    transfer, token = _new_transfer()
    share = ShareKV(
        model=submit.model,
        digests=fetch.digests,
        to=HandOverTo(
            address=fetch.kv_address, transfer=transfer, token=token, machine=fetch.machine
        ),
        lease_seconds=fetch.lease_seconds,
        residency=submit.residency,
    )
    try:
        fetch.source.share_kv(share)
    except CapacityError:
        return None
    return HandOverFrom(
        transfer=transfer,
        token=token,
        lease_seconds=fetch.lease_seconds,
        source=fetch.source.node,
    )
