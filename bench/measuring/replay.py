"""Requests of a trace, sent as completions when their time has come, whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from bench.measuring.load import StreamTimes, stream
from bench.subjects.models import MODEL


class Timed(Protocol):
    """A request of a trace."""

    @property
    def at(self) -> float:
        """Seconds after the first one."""
        ...

    @property
    def prompt(self) -> list[int]: ...

    @property
    def output(self) -> int:
        """Tokens."""
        ...


JobT = TypeVar("JobT", bound=Timed)


async def complete(url: str, token: str, job: Timed) -> StreamTimes:
    """Exactly so many tokens, greedily, streamed."""
    body = {
        "model": MODEL,
        "prompt": job.prompt,
        "max_tokens": job.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return await stream(url, token, body, content=b'"text":"')


async def replay(
    asked: Sequence[JobT], ask: Callable[[JobT], Awaitable[StreamTimes]]
) -> list[StreamTimes]:
    """In the order of `asked`."""

    async def one(job: JobT) -> StreamTimes:
        await asyncio.sleep(job.at)
        return await ask(job)

    return await asyncio.gather(*map(one, asked))
