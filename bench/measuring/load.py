"""An open connection per stream, and a clock on every event: the load generator of the benches.

Small on purpose: on two cores the generator's own CPU time is taken from the servers it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

EXPLAIN = "x-skerry-explain: 1\r\n"


@dataclass
class StreamTimes:
    """Clock readings of one stream, seconds since its request was sent."""

    events: list[float] = field(default_factory=list)  # one per content chunk
    tokens: int = 0  # as the server's usage says
    cached: int = 0  # likewise, of the prompt
    placed: str = ""  # nodes, where that was asked for: `a`, or `a>b`

    @property
    def ttft(self) -> float:
        return self.events[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive chunks: the ITL of a server that sends each token."""
        return [b - a for a, b in zip(self.events, self.events[1:], strict=False)]


async def stream(
    url: str,
    token: str,
    body: dict[str, Any],
    *,
    content: bytes = b'"content":"',
    times: StreamTimes | None = None,
    explained: bool = False,
) -> StreamTimes:
    """POST a streamed completion and read it to `[DONE]`. Raises RuntimeError on a refusal.

    `content` begins an event's text (the default is that of chat completions); an event that has
    none there is not counted. `times` may be looked at meanwhile. `explained`: note where it ran.
    """
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    payload = json.dumps(body).encode()
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        f"{EXPLAIN if explained else ''}Connection: close\r\n\r\n"
    )
    times = StreamTimes() if times is None else times
    with closing(writer):
        start = time.perf_counter()
        writer.write(head.encode() + payload)
        status = await reader.readline()
        if b" 200" not in status:
            raise RuntimeError(f"{url}: {status!r} {(await reader.read(2000))!r}")
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                if explained and line.startswith(b"x-skerry-explain: "):
                    times.placed = line[18:].decode().partition(";")[0].strip(' "\r\n')
                continue
            if line.startswith(b"data: [DONE]"):
                break
            compact = line.replace(b'": "', b'":"')
            if content in compact and content + b'"' not in compact:
                times.events.append(time.perf_counter() - start)
            if b'"completion_tokens"' in line:
                usage = json.loads(line[6:]).get("usage")
                if usage:
                    times.tokens = usage["completion_tokens"]
                    details = usage.get("prompt_tokens_details") or {}
                    times.cached = details.get("cached_tokens") or 0
    return times


async def concurrent(url: str, token: str, bodies: list[dict[str, Any]]) -> list[StreamTimes]:
    """All streams at once."""
    return await asyncio.gather(*(stream(url, token, body) for body in bodies))
