"""What the edge knows of a region: submit token ids, receive token ids.

`LocalRegion` (in process) and remote regions implement the same protocol, so the edge cannot see
them apart. Aborting is a plain call, because an `await` during cancellation is cancelled again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar, runtime_checkable

from skerry.errors import InternalError, SkerryError
from skerry_regions.wire.protocol import (
    MAX_MESSAGE,
    Accepted,
    AnyEvent,
    Done,
    Embed,
    Embedded,
    Failed,
    PhaseUsage,
    Submit,
    Tokens,
)

T = TypeVar("T")

NO_USAGE = PhaseUsage(
    prompt_tokens=0, cached_tokens=0, output_tokens=0,
    queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0,
)  # fmt: skip


class TokenStream(Protocol):
    """Events of one attempt: `Tokens` zero or more times, then `Done`, also after `abort`.

    A failure is raised from the iterator as a `skerry.errors.SkerryError`.
    """

    def __aiter__(self) -> AsyncIterator[Tokens | Done]: ...

    def abort(self) -> None:
        """Have the node stop and free its blocks. Idempotent, synchronous, never fails."""
        ...


@runtime_checkable
class Explained(Protocol):
    """A stream whose nodes were chosen among several."""

    @property
    def explanation(self) -> str:
        """Return the terms of the decision, best placement first; an RFC 8941 list, printable
        ASCII."""
        ...


class RegionClient(Protocol):
    """A region, or the one node of a laptop."""

    async def generate(self, submit: Submit) -> TokenStream:
        """Start a stream. `submit.stream` is assigned by the client; pass 1.

        Raises before any token: `ModelNotFound`, `PromptTooLong`, `InvalidInput`, `Overloaded`
        (with `retry_after`), `Unavailable`.
        """
        ...

    async def embed(self, embed: Embed) -> bytes:
        """Return vectors of texts: f32[texts, dimensions], little-endian, in the texts' order.

        `embed.stream` is assigned by the client; pass 1. Cancelling it stops the node. Raises
        `ModelNotFound`, `InvalidInput`, `Overloaded` (with `retry_after`) or `Unavailable`.
        """
        ...

    def models(self) -> frozenset[str]:
        """Return the catalog ids (not aliases) that this region serves now."""
        ...

    async def close(self) -> None:
        """Abort what runs and release connections."""
        ...


def error_of(failed: Failed) -> SkerryError:
    """Return the exception that a node's `Failed` stands for. An unknown code is a bug of the
    node's."""
    kind = SkerryError.by_code.get(failed.code, InternalError)
    return kind(failed.message, retry_after=failed.retry_after)


def failed_event(stream: int, error: SkerryError) -> Failed:
    """Return the last event of a stream that ends with `error`."""
    return Failed(
        stream=stream,
        code=error.code,
        message=error.message[:MAX_MESSAGE],
        retry_after=error.retry_after,
    )


async def ended(
    start: Callable[[Callable[[Accepted | AnyEvent], None]], T], stop: Callable[[T], None]
) -> Done | Embedded:
    """Return what a stream of which nothing else is wanted ends with. Raises what `start` does, and
    the node's error. What `start` returned is stopped in the end, whoever waits for it or not."""
    end: asyncio.Future[Done | Embedded | Failed] = asyncio.get_running_loop().create_future()

    def push(event: Accepted | AnyEvent) -> None:
        if isinstance(event, Done | Embedded | Failed) and not end.done():
            end.set_result(event)  # else its reader has gone

    running = start(push)
    try:
        event = await end
    finally:
        stop(running)
    if isinstance(event, Failed):
        raise error_of(event)
    return event


async def embedded(
    start: Callable[[Callable[[Embedded | Failed], None]], T], stop: Callable[[T], None]
) -> bytes:
    """Return the vectors that an embedding ends with; the rest is as `ended` does it."""
    event = await ended(start, stop)
    assert isinstance(event, Embedded)  # the only end of such a stream that is no failure
    return event.vectors
