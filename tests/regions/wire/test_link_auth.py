"""Links over TCP: both ends prove that they hold the key; what was said before is no help."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.regions.toy_nodes import MODEL, PATIENCE, RunningNode, hello, until

from skerry_regions.address import Address
from skerry_regions.wire import link_auth
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.link_auth import (
    NO_CREDENTIALS,
    LinkCredentials,
    connect,
    listen,
)
from skerry_regions.wire.link_key import (
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    ConnectingEnd,
    LinkKey,
    LinkRefused,
    ListeningEnd,
)

KEY, WRONG = LinkKey(b"k" * 32), LinkKey(b"w" * 32)
OURS, THEIRS = LinkCredentials(KEY), LinkCredentials(WRONG)
LOOPBACK = Address(host="127.0.0.1", port=0)


# --- without sockets -----------------------------------------------------------------------------


def test_both_ends_prove_themselves() -> None:
    caller, answerer = ConnectingEnd(KEY, "streams"), ListeningEnd(KEY, "streams")
    answer, rest = answerer.receive(caller.greeting())
    assert (answerer.is_proven, rest) == (False, b"")
    proof, rest = caller.receive(answer)
    assert (caller.is_proven, rest) == (True, b"")
    assert answerer.receive(proof + b"first frame") == (b"", b"first frame")
    assert answerer.is_proven


@given(cuts=st.lists(st.integers(1, 40), max_size=20))
def test_any_split_of_the_bytes_is_the_same(cuts: list[int]) -> None:
    caller, answerer = ConnectingEnd(KEY, "kv"), ListeningEnd(KEY, "kv")
    answer = b"".join(answerer.receive(piece)[0] for piece in split(caller.greeting(), cuts))
    proof = b"".join(caller.receive(piece)[0] for piece in split(answer, cuts))
    for piece in split(proof, cuts):
        answerer.receive(piece)
    assert caller.is_proven
    assert answerer.is_proven


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    return [piece for piece in (*pieces, data) if piece]


@pytest.mark.parametrize(
    ("answerer", "caller"),
    [
        (ListeningEnd(WRONG, "streams"), ConnectingEnd(KEY, "streams")),
        (ListeningEnd(KEY, "kv"), ConnectingEnd(KEY, "streams")),
    ],
)
def test_the_caller_refuses_who_cannot_answer(
    answerer: ListeningEnd, caller: ConnectingEnd
) -> None:
    answer, _ = answerer.receive(caller.greeting())
    with pytest.raises(LinkRefused):
        caller.receive(answer)
    assert not caller.is_proven


def test_a_recorded_exchange_is_worth_nothing() -> None:
    caller, first = ConnectingEnd(KEY, "streams"), ListeningEnd(KEY, "streams")
    greeting = caller.greeting()
    proof, _ = caller.receive(first.receive(greeting)[0])
    second = ListeningEnd(KEY, "streams")
    second.receive(greeting)
    with pytest.raises(LinkRefused):
        second.receive(proof)
    assert not second.is_proven


def test_a_proof_sent_back_is_none() -> None:
    """The answerer's own proof, over the same nonces, is not the caller's."""
    answerer = ListeningEnd(KEY, "streams")
    answer, _ = answerer.receive(MAGIC + b"n" * NONCE_BYTES)
    with pytest.raises(LinkRefused):
        answerer.receive(answer[-PROOF_BYTES:])


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"s\0", b"\x16\x03\x01"])
def test_what_is_no_skerry_is_refused_at_its_first_bytes(garbage: bytes) -> None:
    with pytest.raises(LinkRefused):
        ListeningEnd(KEY, "streams").receive(garbage)


def test_a_short_key_is_none() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        LinkKey(b"short")
    assert "k" * 32 not in repr(KEY)


# --- over sockets --------------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Talker(asyncio.Protocol):
    """Says hello at once, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.heard.set_result(data)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_link_works_as_if_nothing_were_in_front(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        address = LOOPBACK if kind == "tcp" else Address(path=str(tmp_path / "sock"))
        known = OURS if kind == "tcp" else NO_CREDENTIALS
        server, bound = await listen(address, Echo, known, "streams")
        talker = await connect(bound, Talker, known, "streams")
        assert await talker.heard == b"hello"
        talker.transport.abort()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("wrong", ["key", "purpose"])
def test_who_has_another_key_gets_nowhere(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    made: list[Echo] = []

    def echo() -> Echo:
        made.append(Echo())
        return made[-1]

    async def run() -> None:
        server, bound = await listen(LOOPBACK, echo, OURS, "streams")
        known, purpose = (THEIRS, "streams") if wrong == "key" else (OURS, "kv")
        with pytest.raises(LinkRefused):
            await connect(bound, Talker, known, "kv" if purpose == "kv" else "streams")
        server.close()

    asyncio.run(run())
    assert not hasattr(made[0], "transport")


def test_a_link_over_tcp_needs_a_key() -> None:
    async def run() -> None:
        with pytest.raises(LinkRefused):
            await listen(LOOPBACK, Echo, NO_CREDENTIALS, "streams")
        with pytest.raises(LinkRefused):
            await connect(Address(host="127.0.0.1", port=1), Echo, NO_CREDENTIALS, "streams")

    asyncio.run(run())


async def dropped(send: bytes, count: int = 1) -> list[bytes]:
    """What connections are told that send only this; all are kept open until they are dropped."""
    server, bound = await listen(LOOPBACK, Echo, OURS, "streams")
    connections = [await asyncio.open_connection(bound.host, bound.port) for _ in range(count)]
    for _, writer in connections:
        writer.write(send)
    told = [await _read(reader) for reader, _ in connections]
    for _, writer in connections:
        writer.close()
    server.close()
    return told


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_who_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_auth, "HANDSHAKE_SECONDS", 0.05)
    assert asyncio.run(dropped(MAGIC)) == [b""]


def test_who_is_no_skerry_is_dropped_at_once() -> None:
    assert asyncio.run(dropped(b"GET / HTTP/1.1\r\n\r\n")) == [b""]


def test_the_unproven_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_auth, "MAX_UNPROVEN", 2)
    monkeypatch.setattr(link_auth, "HANDSHAKE_SECONDS", 0.2)
    assert asyncio.run(dropped(b"", 4)) == [b""] * 4


# --- a node and an edge --------------------------------------------------------------------------


@pytest.mark.parametrize("known", [OURS, THEIRS, NO_CREDENTIALS])
def test_a_node_over_tcp_serves_who_holds_its_key(
    tmp_path: Path, known: LinkCredentials, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        node = RunningNode("n", tmp_path)
        bound = await node.server.listen(LOOPBACK, OURS)
        link = NodeLink("n", bound, hello("edge"), PATIENCE, credentials=known)
        try:
            if known is OURS:
                await until(lambda: link.is_up)
                assert link.models == {MODEL}
            else:
                async with asyncio.timeout(60):
                    while "cluster" not in caplog.text:  # noqa: ASYNC110  (a log)
                        await asyncio.sleep(0.01)
                assert not link.is_up
        finally:
            await link.close()
            await node.stop()

    asyncio.run(run())
