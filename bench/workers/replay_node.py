"""A back end that replays token ids at a fixed pace, spoken to in two ways.

    python -m bench.workers.replay_node SECONDS_PER_STEP HOME

As a node it takes Skerry's frames on a unix socket and announces itself in the registry of HOME;
as an OpenAI-compatible server it takes chat completions on loopback, and streams each token as the
text that a Skerry edge makes of it. Both feed the same streams: the first token at once, then one
at each step that all streams share, up to `max_tokens`. Prompts are not read (nor, over HTTP,
tokenised: usage counts their words). Answers one JSON line with its URL and pid.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import uvloop

from bench.subjects.models import default_model
from bench.workers.edge_replay import STREAMS, TEXT, say, until_input_ends
from skerry.errors import ModelNotFound
from skerry_cli.home.state import Home
from skerry_edge.text.model import TextModel
from skerry_regions.address import Address
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.registry import Member
from skerry_regions.view import NodeLoad
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.node_connection import Abortable
from skerry_regions.wire.protocol import (
    VERSIONS,
    Accepted,
    AnyEvent,
    Done,
    Embed,
    Embedded,
    EngineBeat,
    Failed,
    Hello,
    ModelBuild,
    PhaseUsage,
    ShareKV,
    Submit,
    Tokens,
)
from skerry_regions.wire.reports import Report

REGION = "local"
BUILD = "replay"


class Stream:
    """`give` gets the number of each token, `end` (once) how many there were and why."""

    is_accepted = True

    def __init__(
        self, length: int, give: Callable[[int], None], end: Callable[[int, bool], None]
    ) -> None:
        self._length, self._give, self._end = length, give, end
        self._given = 0
        self._aborted = self.ended = False

    def abort(self) -> None:
        """The end comes with the next step."""
        self._aborted = True

    def step(self) -> None:
        if not self._aborted:
            self._give(self._given)
            self._given += 1
        if self._aborted or self._given == self._length:
            self.ended = True
            self._end(self._given, self._aborted)


class Pace:
    """The steps that all streams share."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._streams: list[Stream] = []

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def start(self, stream: Stream) -> None:
        """Its first token comes right after this returns."""
        asyncio.get_running_loop().call_soon(self._begin, stream)

    def _begin(self, stream: Stream) -> None:
        stream.step()
        if not stream.ended:
            if not self._streams:
                asyncio.get_running_loop().call_later(self._seconds, self._beat)
            self._streams.append(stream)

    def _beat(self) -> None:
        for stream in self._streams:
            stream.step()
        self._streams = [stream for stream in self._streams if not stream.ended]
        if self._streams:
            asyncio.get_running_loop().call_later(self._seconds, self._beat)


class ReplayNode:
    """`Serving` of one model."""

    def __init__(self, model: str, ids: list[int], pace: Pace) -> None:
        self._model, self._ids, self._pace = model, ids, pace

    def submit(self, submit: Submit, sink: Callable[[Accepted | AnyEvent], None]) -> Stream:
        def give(number: int) -> None:
            token = self._ids[number % len(self._ids)]
            sink(Tokens(stream=submit.stream, index=number, token_ids=[token]))

        def end(given: int, aborted: bool) -> None:
            reason = "cancelled" if aborted else "length"
            usage = PhaseUsage(
                prompt_tokens=len(submit.prompt_ids), cached_tokens=0, output_tokens=given,
                queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0,
            )  # fmt: skip
            sink(Done(stream=submit.stream, finish_reason=reason, usage=usage))

        stream = Stream(submit.sampling.max_tokens, give, end)
        self._pace.start(stream)
        return stream

    def embed(self, embed: Embed, sink: Callable[[Embedded | Failed], None]) -> Abortable:
        raise ModelNotFound(f"no node embeds by {embed.model}")

    def call(self, call: EdgeCall, sink: Callable[[EdgeAnswer | Failed], None]) -> NoReturn:
        raise ModelNotFound("a replaying node keeps nothing of clients")

    def share(self, share: ShareKV) -> None:
        raise ModelNotFound("a replaying node has no KV")

    def beats(self) -> list[EngineBeat]:
        return []

    def reports(self) -> list[Report]:
        return [Report(model=self._model, load=NodeLoad(streams=self._pace.num_streams))]

    def snapshots(self) -> list[Report]:
        return self.reports()


class Message(msgspec.Struct):
    role: str
    content: str


class Chat(msgspec.Struct):
    """What is read of a request; the answer is always streamed, with usage."""

    messages: list[Message]
    max_tokens: int


class ChatConnection(asyncio.Protocol):
    """HTTP/1.1, one request after the other; what it writes per token was made beforehand."""

    def __init__(self, chunks: list[bytes], model: str, pace: Pace) -> None:
        self._chunks, self._model, self._pace = chunks, model, pace
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._stream is not None:
            self._stream.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", 0))
        if not found or len(rest) < length:
            return
        self._buffer = bytearray(rest[length:])
        if head.startswith(b"POST /v1/chat/completions "):
            self._answer(msgspec.json.decode(rest[:length], type=Chat))
        else:  # proxies look for more than they need
            self._write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _answer(self, chat: Chat) -> None:
        words = sum(len(message.content.split()) for message in chat.messages)
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

        def give(number: int) -> None:
            self._write(self._chunks[number % len(self._chunks)])

        def end(given: int, aborted: bool) -> None:
            usage = {
                "prompt_tokens": words,
                "completion_tokens": given,
                "total_tokens": words + given,
            }
            finish = {"index": 0, "delta": {}, "finish_reason": "length"}
            last = event(self._model, [finish]) + event(self._model, [], usage)
            self._write(last + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        self._stream = Stream(chat.max_tokens, give, end)
        self._pace.start(self._stream)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def event(model: str, choices: Sequence[object], usage: object = None) -> bytes:
    """A chunk of a chat completion as an HTTP chunk."""
    chunk = {
        "id": "chatcmpl-replay",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
    }
    chunk |= {"model": model, "choices": choices, "usage": usage}
    return framed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def run(seconds_per_step: float, home: Home) -> None:
    spec, files = default_model()
    text = TextModel(files, context_window=spec.context_window)
    ids, pace = text.encode(TEXT * 4), Pace(seconds_per_step)
    build = ModelBuild(
        id=spec.id,
        tokenizer=files.tokenizer_digest,
        template=files.template_digest,
        numeric_build=BUILD,
    )
    hello = Hello(versions=[*VERSIONS], id=BUILD, models=[build], max_streams=STREAMS)
    node = NodeServer(ReplayNode(spec.id, ids, pace), hello)
    address = await node.listen(Address(path=str(home.run / "replay.sock")))
    member = Member(
        id=BUILD,
        kind="node",
        region=REGION,
        pid=os.getpid(),
        incarnation=new_incarnation(),
        address=str(address),
        model=spec.id,
        numeric_build=BUILD,
        state="ready",
    )
    announcer = Announcer(SqliteRegistry(home.registry), lambda: member)
    chunks = [
        event(spec.id, [{"index": 0, "delta": {"content": text.token_bytes(id_).decode()}}])
        for id_ in ids
    ]
    server = await asyncio.get_running_loop().create_server(
        lambda: ChatConnection(chunks, spec.id, pace), "127.0.0.1", 0, backlog=STREAMS
    )
    stop = until_input_ends()
    say({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "pid": os.getpid()})
    await stop.wait()
    server.close()
    await announcer.withdraw()
    await node.close()


if __name__ == "__main__":
    uvloop.run(run(float(sys.argv[1]), Home(Path(sys.argv[2]))))
