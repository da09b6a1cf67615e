"""A tenant of another process, whose requests cost as much as it can make them, or nothing unusual.

Reads one JSON line per order: `{"kind": …, "seconds": …, "requests": …, "tokens": …}`, works for so
long, and answers with what it got: requests by status, and completion tokens. `neighbour` spreads
so many `requests`, of so many `tokens` together, evenly over the time; the others do what they can.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

NICE = 10  # its own work is not to be taken for the platform's
AT_ONCE = 4  # requests
PAUSE_SECONDS = 0.02  # after each: what is measured is what requests cost, not a full pipe
CONNECTIONS = 4400  # held on a listener of 4,096 places; from then on each makes way for another
CHURN_SECONDS = 0.03  # between three new ones
SOURCE = "127.9.0.1"  # a host that is not the other tenant's

HOSTILE_GRAMMAR = {
    "type": "string",
    "allOf": [{"pattern": f"a.{{{n}}}b"} for n in range(10, 37)],
}


def chat(model: str, text: str, **more: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return json.dumps(body | more).encode()


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def body_of(kind: str, model: str, foreign: str, turn: int) -> bytes:
    """The request of an attack; no two are the same, so that no cache helps."""
    match kind:
        case "schemas":
            return chat(model, "x", **form({"oneOf": [{"const": n + turn} for n in range(3000)]}))
        case "grammars":
            return chat(model, "x", **form(HOSTILE_GRAMMAR | {"minLength": turn}))
        case "prompts":
            return chat(model, f"{turn} " + "The quick brown fox jumps. " * 9000)
        case "bodies":
            return b'{"model":"m","messages":[],"tools":[{"a":[' + b"[]," * 2_600_000 + b"[]]}]}"
        case "templates":
            return chat(foreign, "boom")
        case _:
            raise ValueError(f"no attack is called {kind!r}")


class Attacker:
    def __init__(self, url: str, token: str, model: str, foreign: str) -> None:
        self._parts, self._token = urlsplit(url), token
        self._model, self._foreign = model, foreign
        self.statuses: Counter[str] = Counter()
        self.tokens = 0
        self._turn = 0

    async def work(self, kind: str, seconds: float, requests: int = 0, tokens: int = 0) -> None:
        """Do as ordered until the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        if kind == "connections":
            return await self._hold(end)
        if kind == "neighbour":
            each, begun = max(1, tokens // max(1, requests)), loop.time()
            times = [begun + number * seconds / requests for number in range(requests)]
            tasks = [self._buy(at, each) for at in times]
        else:
            tasks = [self._repeat(kind, end) for _ in range(AT_ONCE)]
        await asyncio.gather(*tasks)
        await asyncio.sleep(max(0.0, end - loop.time()))

    async def _repeat(self, kind: str, end: float) -> None:
        while (left := end - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._ask(kind)
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _buy(self, at: float, tokens: int) -> None:
        await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
        self._turn += 1
        await self._send(chat(self._model, f"x {self._turn}", max_tokens=tokens, min_tokens=tokens))

    async def _ask(self, kind: str) -> None:
        self._turn += 1
        await self._send(body_of(kind, self._model, self._foreign, self._turn))

    async def _send(self, body: bytes) -> None:
        head = (
            f"POST {self._parts.path} HTTP/1.1\r\nHost: {self._parts.netloc}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        try:
            reader, writer = await self._connect()
            try:
                writer.write(head.encode() + body)
                answer = await reader.read()
            finally:
                writer.close()
        except OSError as error:
            self.statuses[type(error).__name__] += 1
            return
        self.statuses[answer[9:12].decode(errors="replace")] += 1
        with contextlib.suppress(ValueError, KeyError, TypeError):
            content = json.loads(answer.partition(b"\r\n\r\n")[2])
            self.tokens += int(content["usage"]["completion_tokens"])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._parts.hostname, self._parts.port
        return await asyncio.open_connection(host, port, local_addr=(SOURCE, 0))

    async def _hold(self, end: float) -> None:
        """Have more connections than there are places: silent, half a head, an idle one."""
        probe = f"GET /healthz HTTP/1.1\r\nHost: {self._parts.netloc}\r\n\r\n".encode()
        held: list[asyncio.StreamWriter] = []
        loop = asyncio.get_running_loop()
        try:
            while loop.time() < end:
                for sent in (b"", b"GET /", probe):
                    with contextlib.suppress(OSError):
                        _, writer = await self._connect()
                        writer.write(sent)
                        held.append(writer)
                        self.statuses["connected"] += 1
                await asyncio.sleep(CHURN_SECONDS if len(held) > CONNECTIONS else 0)
                while len(held) > CONNECTIONS:
                    held.pop(0).close()
        finally:
            for writer in held:
                writer.transport.abort()


def main() -> None:
    url, token, model, foreign = sys.argv[1:]
    os.nice(NICE)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for line in sys.stdin:
        order = json.loads(line)
        attacker = Attacker(url, token, model, foreign)
        asyncio.run(attacker.work(**order))
        answer = {"statuses": attacker.statuses, "tokens": attacker.tokens}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
