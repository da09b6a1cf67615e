"""Every parser of what strangers send, as a function of bytes: it returns, or raises a bug.

Where something independent reads the same (h11), both must agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import h11
import msgspec
import numpy as np
import xxhash

Target = Callable[[bytes], None]
NOW = 1_800_000_000.0  # seconds, as the example's clock has it


def http_head() -> Target:
    """Heads and bodies of HTTP/1: the same whatever the split, and never what h11 refuses."""
    from skerry_edge.http.body import BodyRefused, Upload
    from skerry_edge.http.head import Head, HeadReader
    from skerry_edge.http.refusal import Refusal
    from skerry_edge.limits import Limits

    limits = Limits()

    def read(data: bytes, cut: int) -> tuple[Head | Refusal, bytes] | None:
        reader = HeadReader(limits)
        return reader.read(data[:cut]) or reader.read(data[cut:])

    def body(head: Head, data: bytes, cut: int) -> bytes | None:
        upload, got = Upload(head.body_size, head.target, limits, 0.0), b""
        for piece in (data[:cut], data[cut:]):
            try:
                got += upload.take(piece)[0]
            except BodyRefused:
                return None
        return got

    def run(data: bytes) -> None:
        cut = data[0] if data else 0
        found = read(data, len(data))
        if found is None or isinstance(found[0], Refusal):
            return
        head, rest = found
        assert isinstance(head, Head)
        split = read(data, min(cut, len(data)))
        assert split is not None
        assert split[0] == head
        assert body(head, rest, len(rest)) == body(head, rest, cut)
        peer = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        while data.startswith(b"\r\n"):  # RFC 9112, 2.2, which h11 does not follow
            data = data[2:]
        peer.receive_data(data)
        event = peer.next_event()  # raises for what h11 refuses
        assert isinstance(event, h11.Request)
        assert event.method == head.method.encode()
        if head.body_size is not None:
            sizes = [value for name, value in event.headers if name == b"content-length"]
            assert int(sizes[0]) == head.body_size if sizes else head.body_size == 0

    return run


def websocket() -> Target:
    """Frames of WebSockets: the same whatever the split, and as another implementation has them
    where neither refuses them; which of them sees first what is wrong is their own."""
    from tests.edge.http.websocket_peer import alike, messages_of, read_by_another

    def run(data: bytes) -> None:
        cut = data[0] if data else 0
        ours = asyncio.run(messages_of([data]))
        assert ours == asyncio.run(messages_of([data[:cut], data[cut:]]))
        read, code = alike(ours)
        others, other = alike(read_by_another(data))
        both = min(len(read), len(others))
        assert read[:both] == others[:both]
        assert {1002, 1003} & {code, other} or (read, code) == (others, other)

    return run


def frames() -> Target:
    """Messages between edges and nodes."""
    from skerry_regions.wire.frames import FrameDecoder, ProtocolError
    from skerry_regions.wire.protocol import Abort, Done, Embed, Failed, Hello, Ping, Submit, Tokens

    messages = Submit | Abort | Embed | Hello | Ping | Tokens | Done | Failed

    def decoded(pieces: list[bytes]) -> list[object]:
        decoder: FrameDecoder[object] = FrameDecoder(messages)
        got: list[object] = []
        try:
            for piece in pieces:
                got += decoder.feed(piece)
        except ProtocolError:
            got.append(ProtocolError)
        return got

    def run(data: bytes) -> None:
        framed = len(data).to_bytes(4, "big") + data
        for stream in (data, framed):
            cut = data[0] if data else 0
            assert decoded([stream]) == decoded([stream[:cut], stream[cut:]])

    return run


def kv_frames() -> Target:
    """KV transfers, with a header and a checksum that are right."""
    from skerry_regions.kv import frames as kv
    from skerry_regions.kv.frames import KVFrameDecoder, TransferError

    def run(data: bytes) -> None:
        checksum = xxhash.xxh3_128_digest(data)
        fields = (kv.MAGIC, kv.VERSION, 1, 0, 1, bytes(16), 0, 0, len(data), checksum)
        header = kv._HEADER.pack(*fields)
        for stream in (data, header + data):
            with contextlib.suppress(TransferError):
                list(KVFrameDecoder().feed(stream))

    return run


def gguf() -> Target:
    """Both readers of GGUF headers, and the tensors of one."""
    from skerry_core.weights.gguf import read_gguf
    from skerry_core.weights.tensors import WeightsError
    from skerry_regions.models.foreign.gguf_header import GGUFError, read_metadata

    path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)) / "g"

    def run(data: bytes) -> None:
        with contextlib.suppress(WeightsError):
            read_gguf(np.frombuffer(data, np.uint8), "g").tensors()
        path.write_bytes(data)
        with contextlib.suppress(GGUFError):
            read_metadata(path)

    return run


def safetensors() -> Target:
    from skerry_core.weights.safetensors import read_safetensors
    from skerry_core.weights.tensors import WeightsError

    def run(data: bytes) -> None:
        framed = len(data).to_bytes(8, "little") + data + bytes(64)
        for file in (data, framed):
            with contextlib.suppress(WeightsError):
                read_safetensors(np.frombuffer(file, np.uint8), "s")

    return run


def sse() -> Target:
    from skerry._events import Event, EventDecoder, EventTooLong

    limit = 768  # bytes of an event: within reach

    def decoded(pieces: list[bytes]) -> list[Event]:
        decoder, got = EventDecoder(limit), list[Event]()
        try:
            for piece in pieces:
                got += decoder.feed(piece)
        except EventTooLong:
            pass
        return got

    def run(data: bytes) -> None:
        cut = data[0] if data else 0
        whole = decoded([data])
        if len(data) < limit:
            assert whole == decoded([data[:cut], data[cut:]])

    return run


def topology() -> Target:
    from skerry_regions.topology.loading import TopologyError, decode_topology, parse_topology

    def run(data: bytes) -> None:
        for parse in (parse_topology, decode_topology):
            with contextlib.suppress(TopologyError):
                parse(data)

    return run


def templates() -> Target:
    """Chat templates: any error of a template, and none of ours; within their limits."""
    from skerry_edge.text.templates.filters import TemplateRefusal
    from skerry_edge.text.templates.sandbox import TemplateLimit
    from skerry_edge.text.templates.template import FAILURES, ChatTemplate, TemplateError

    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "bc" * 20},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
    ]
    expected = (*FAILURES, TemplateLimit, TemplateRefusal)

    def run(data: bytes) -> None:
        try:
            source = data.decode("utf-8", "replace")
            # No time passes: what ends is ended by the work that it pays for.
            template = ChatTemplate(source, now=lambda: datetime(2026, 1, 1), clock=lambda: 0.0)
        except TemplateError:
            return
        with contextlib.suppress(*expected):
            assert isinstance(template.render(messages), str)

    return run


def schemas() -> Target:
    """What is taken comes out as JSON, and taken again it stays as it is."""
    from skerry.errors import InvalidInput
    from skerry_edge.output.schema import checked

    def run(data: bytes) -> None:
        try:
            schema = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        try:
            lowered = checked(schema, "s")
        except InvalidInput:
            return
        assert checked(json.loads(json.dumps(lowered)), "s") == lowered

    return run


def dns() -> Target:
    """Queries to a plain and to a signed zone; the compiled path says what the other one says.

    Run with NUMBA_BOUNDSCHECK=1.
    """
    from tests.dns.example import ORIGIN, RESOLVER, responder, zone
    from tests.dns.fast.fast_answers import FastResponder, Left, is_same

    from skerry_dns.signing.signed_zone import SignedZone
    from skerry_dns.signing.zone_key import ZoneKey

    key = ZoneKey.create(Path(tempfile.mkdtemp()) / "example.test.key")
    made = SignedZone(zone(*key.records(ORIGIN)), key)
    made.presign(NOW)
    servers = [responder(), responder(signed=made)]
    pairs = [(server, FastResponder(server)) for server in servers]

    def run(data: bytes) -> None:
        for server, fast in pairs:
            expected = server.respond(data[:1232], RESOLVER, stream=False)
            try:
                answer = fast.respond(data[:1232], RESOLVER, NOW)
            except Left:
                continue
            assert is_same(answer, expected)

    return run


TARGETS: dict[str, Callable[[], Target]] = {
    each.__name__: each
    for each in (
        *(http_head, websocket, frames, kv_frames, gguf, safetensors),
        *(sse, topology, templates, schemas, dns),
    )
}
