"""Framing: any split gives the same messages, and no bytes do more than `ProtocolError`."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skerry_regions.wire.frames import (
    HEADER_BYTES,
    MAX_FRAME,
    FrameDecoder,
    MessageTooLarge,
    ProtocolError,
    encode,
)
from skerry_regions.wire.protocol import (
    MAX_TEXTS,
    MAX_TOKENS,
    Abort,
    Credit,
    EdgeMessage,
    Embed,
    Hello,
    ModelBuild,
    NodeMessage,
    Ping,
    Sampling,
    Submit,
    Tokens,
)

SUBMIT = Submit(
    stream=7,
    request_id="r-1",
    epoch=2,
    model="@cf/toy/toy",
    prompt_ids=[1, 2, 300],
    output_ids=[4],
    sampling=Sampling(temperature=0.7, logit_bias=((5, -1.5),), seed=(1 << 64) - 1, logprobs=3),
    tenant="t",
    cache_key=b"\x00key",
    priority="batch",
    seconds_left=1.5,
)
EMBED = Embed(
    stream=8,
    request_id="r-2",
    model="@cf/toy/encoder",
    texts=[[101, 7, 102], [101, 102]],
    pooling="mean",
    normalize=True,
)
MESSAGES: list[EdgeMessage] = [
    Hello(
        versions=[1],
        id="edge-1",
        models=[ModelBuild(id="m", tokenizer="a", template="b", numeric_build="c")],
    ),
    SUBMIT,
    EMBED,
    Credit(stream=7, count=32),
    Ping(nonce=1),
    Abort(stream=7),
]


def decoder() -> FrameDecoder[EdgeMessage]:
    return FrameDecoder(EdgeMessage)


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def feed(frames: FrameDecoder[Any], data: bytes) -> tuple[list[Any], ProtocolError | None]:
    """Messages, and the error that ended them."""
    received: list[Any] = []
    try:
        received.extend(frames.feed(data))
    except ProtocolError as error:
        return received, error
    return received, None


def submit_with(**fields: object) -> bytes:
    """A submit frame with fields that no constructor of ours would encode."""
    return frame(
        msgspec.msgpack.encode(msgspec.to_builtins(SUBMIT, builtin_types=(bytes,)) | fields)
    )


@given(cuts=st.lists(st.integers(0, 400), max_size=40))
@example(cuts=list(range(400)))
def test_any_split_gives_the_same_messages(cuts: list[int]) -> None:
    data = b"".join(map(encode, MESSAGES))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    frames = decoder()
    received = [message for a, b in itertools.pairwise(edges) for message in frames.feed(data[a:b])]
    assert received == MESSAGES
    assert frames.buffered == 0


@given(st.binary(max_size=4096))
def test_garbage_is_a_protocol_error_or_nothing(data: bytes) -> None:
    for messages in (EdgeMessage, NodeMessage):
        frames: FrameDecoder[Any] = FrameDecoder(messages)
        received, error = feed(frames, data)
        assert all(isinstance(message, messages) for message in received)
        assert error is None or 0 <= error.offset <= len(data)
        assert frames.buffered <= len(data)


@given(data=st.data())
def test_damaged_frames_are_a_protocol_error_or_a_valid_message(data: st.DataObject) -> None:
    damaged = bytearray(b"".join(map(encode, MESSAGES)))
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    received, error = feed(decoder(), bytes(damaged))
    assert all(isinstance(message, EdgeMessage) for message in received)
    assert error is None or 0 <= error.offset < len(damaged)


def test_messages_before_the_damage_arrive_and_the_error_says_where() -> None:
    good = encode(MESSAGES[0]) + encode(MESSAGES[3])
    received, error = feed(decoder(), good + frame(b"\xc1") + encode(MESSAGES[4]))
    assert received == [MESSAGES[0], MESSAGES[3]]
    assert error is not None
    assert error.offset == len(good)


def test_an_oversized_frame_is_refused_by_its_header_alone() -> None:
    frames = decoder()
    header = (MAX_FRAME + 1).to_bytes(HEADER_BYTES, "big")
    with pytest.raises(ProtocolError, match=rf"frame of {MAX_FRAME + 1} bytes.*byte 0"):
        list(frames.feed(header))


def test_an_http_request_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        list(decoder().feed(b"GET / HTTP/1.1\r\n"))


def test_an_unfinished_frame_holds_no_more_than_one_frame() -> None:
    frames = decoder()
    piece = bytes(64 * 1024)
    assert list(frames.feed(MAX_FRAME.to_bytes(HEADER_BYTES, "big"))) == []
    for _ in range(MAX_FRAME // len(piece) - 1):
        assert list(frames.feed(piece)) == []
    assert frames.buffered < MAX_FRAME + HEADER_BYTES
    with pytest.raises(ProtocolError, match="not a message"):
        list(frames.feed(piece))
    assert frames.buffered == 0


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        (submit_with(stream=0), r"\$\.stream"),
        (submit_with(stream=1 << 32), r"\$\.stream"),
        (submit_with(prompt_ids=[1, -1]), r"\$\.prompt_ids\[1\]"),
        (submit_with(prompt_ids=[1 << 31]), r"\$\.prompt_ids\[0\]"),
        (submit_with(prompt_ids=[True]), r"\$\.prompt_ids\[0\]"),
        (submit_with(request_id="r" * 129), r"\$\.request_id"),
        (submit_with(cache_key=b"k" * 65), r"\$\.cache_key"),
        (submit_with(seconds_left=float("nan")), r"\$\.seconds_left"),
        (submit_with(seconds_left=-1.0), r"\$\.seconds_left"),
        (submit_with(sampling={"temperature": float("nan")}), r"\$\.sampling\.temperature"),
        (submit_with(sampling={"top_p": 0.0}), r"\$\.sampling\.top_p"),
        (submit_with(sampling={"logit_bias": [[1, float("inf")]]}), r"\$\.sampling\.logit_bias"),
        (submit_with(sampling={"max_tokens": 1 << 21}), r"\$\.sampling\.max_tokens"),
        (submit_with(priority="urgent"), r"\$\.priority"),
        (submit_with(type="nonsense"), "nonsense"),
    ],
)
def test_fields_out_of_range_are_refused_with_their_path(payload: bytes, where: str) -> None:
    with pytest.raises(ProtocolError, match=where):
        list(decoder().feed(payload))


def test_a_declared_length_is_not_believed() -> None:
    """An array of 2^32 - 1 items in a frame of 60 bytes allocates nothing."""
    start = msgspec.msgpack.encode({"type": "tokens", "stream": 1, "index": 0})
    payload = bytes([start[0] + 1]) + start[1:] + msgspec.msgpack.encode("token_ids")
    for length in (b"\xdd\xff\xff\xff\xff", b"\xdd\x00\x01\xff\xff"):
        frames: FrameDecoder[NodeMessage] = FrameDecoder(NodeMessage)
        with pytest.raises(ProtocolError):
            list(frames.feed(frame(payload + length)))


def test_deep_nesting_is_refused() -> None:
    payload = b"\x82" + msgspec.msgpack.encode("type") + msgspec.msgpack.encode("ping")
    payload += msgspec.msgpack.encode("extra") + b"\x91" * 100_000
    with pytest.raises(ProtocolError, match="not a message"):
        list(decoder().feed(frame(payload)))


def test_the_longest_prompt_fits_a_frame() -> None:
    longest = msgspec.structs.replace(SUBMIT, prompt_ids=[(1 << 31) - 1] * MAX_TOKENS)
    assert list(decoder().feed(encode(longest))) == [longest]


def test_a_message_no_peer_would_accept_is_not_encoded() -> None:
    with pytest.raises(MessageTooLarge, match="Tokens of"):
        encode(Tokens(stream=1, index=0, token_ids=[(1 << 31) - 1] * (MAX_FRAME // 5)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("texts", []),
        ("texts", [[1]] * (MAX_TEXTS + 1)),
        ("texts", [[-1]]),
        ("texts", [[1 << 31]]),
        ("texts", [["word"]]),
        ("pooling", "median"),
        ("normalize", None),
    ],
)
def test_an_embedding_out_of_bounds_is_refused_with_its_path(field: str, value: object) -> None:
    fields = msgspec.to_builtins(EMBED) | {field: value}
    received, error = feed(decoder(), frame(msgspec.msgpack.encode(fields)))
    assert received == []
    assert f"$.{field}" in str(error)
