"""Credit of a connection, its pulse, embeddings, and calls to edges."""

from __future__ import annotations

import pytest
from tests.regions.wire.ends import MODEL, deliver, done, failed, hello, pair, submit, tokens

from skerry.errors import Overloaded, Unavailable
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.edge_connection import EdgeConnection
from skerry_regions.wire.frames import ProtocolError, encode
from skerry_regions.wire.node_connection import NodeConnection
from skerry_regions.wire.protocol import (
    VERSIONS,
    Abort,
    Accepted,
    Credit,
    Done,
    Embed,
    Embedded,
    EngineBeat,
    Ping,
    Pong,
    Tokens,
)


def embed() -> Embed:
    return Embed(
        stream=1, request_id="r", model=MODEL, texts=[[1, 2]], pooling="mean", normalize=True
    )


def embedded(stream: int) -> Embedded:
    return Embedded(stream=stream, vectors=b"\0\0\0\0")


# --- credit --------------------------------------------------------------------------------------


def test_without_credit_events_wait_in_order_and_abort_drops_them() -> None:
    edge, node = pair(window=2)
    slow, dropped = edge.submit(submit()), edge.submit(submit())
    deliver(edge, node)
    for stream in (slow, dropped):
        for index in range(4):
            node.send(tokens(stream, index))
        node.send(done(stream))
    assert deliver(edge, node)[1] == [
        tokens(slow, 0), tokens(slow, 1), tokens(dropped, 0), tokens(dropped, 1)
    ]  # fmt: skip
    edge.abort(dropped)
    assert deliver(edge, node) == ([], [done(dropped)])  # ended already: nothing left to stop
    edge.consumed(slow, 2)
    assert deliver(edge, node)[1] == [tokens(slow, 2), tokens(slow, 3), done(slow)]


def test_tokens_without_credit_are_a_breach() -> None:
    edge, node = pair(window=1)
    edge.submit(submit())
    deliver(edge, node)
    with pytest.raises(ProtocolError, match="without credit on stream 1"):
        list(edge.receive(encode(tokens(1, 0)) + encode(tokens(1, 1))))


def test_more_credit_than_the_window_is_a_breach() -> None:
    edge, node = pair(window=2)
    edge.submit(submit())
    deliver(edge, node)
    with pytest.raises(ProtocolError, match="more credit than its window"):
        list(node.receive(encode(Credit(stream=1, count=1))))


def test_consuming_what_never_came_is_the_callers_fault() -> None:
    edge, node = pair()
    stream = edge.submit(submit())
    deliver(edge, node)
    with pytest.raises(RuntimeError, match="more events consumed"):
        edge.consumed(stream)


def test_ping_and_pong_carry_the_step_counter() -> None:
    edge, node = pair()
    edge.ping(41)
    [ping] = node.receive(edge.data_to_send())
    assert ping == Ping(nonce=41)
    beat = EngineBeat(model=MODEL, steps=1234, running=2, waiting=1)
    node.pong(41, [beat])
    assert list(edge.receive(node.data_to_send())) == [Pong(nonce=41, engines=[beat])]


# --- embeddings ----------------------------------------------------------------------------------


def test_an_embedding_is_one_message_each_way() -> None:
    edge, node = pair(max_streams=1)
    assert edge.submit(embed()) == 1
    with pytest.raises(Overloaded):
        edge.submit(embed())
    assert deliver(edge, node) == ([embed()], [])
    node.send(embedded(1))
    with pytest.raises(RuntimeError, match="not open"):
        node.send(embedded(1))
    assert deliver(edge, node) == ([], [embedded(1)])
    assert edge.open_streams == node.open_streams == {}
    assert edge.submit(submit()) == 2


def test_an_aborted_embedding_ends_once() -> None:
    edge, node = pair()
    stream = edge.submit(embed())
    edge.abort(stream)
    got, _ = deliver(edge, node)
    assert got == [embed(), Abort(stream=stream)]
    node.send(failed(stream))
    assert deliver(edge, node) == ([], [failed(stream)])


@pytest.mark.parametrize("event", [Accepted(stream=1), tokens(1, 0), done(1)])
def test_tokens_do_not_answer_an_embedding(event: Accepted | Tokens | Done) -> None:
    edge, _ = pair()
    edge.submit(embed())
    with pytest.raises(ProtocolError, match="does not belong on stream 1"):
        list(edge.receive(encode(event)))


def test_vectors_do_not_answer_a_prompt() -> None:
    edge, _ = pair()
    edge.submit(submit())
    with pytest.raises(ProtocolError, match="Embedded does not belong on stream 1"):
        list(edge.receive(encode(embedded(1))))


# --- calls between edges -------------------------------------------------------------------------

CALL = EdgeCall(stream=1, zone="us", method="GET", target=b"/v1/files/x", headers=[(b"a", b"b")])


def edges(*, window: int = 4) -> tuple[EdgeConnection, NodeConnection]:
    calling = EdgeConnection(hello("edge-us", window=window, versions=[*VERSIONS]))
    answering = NodeConnection(hello("edge-eu", window=window, versions=[*VERSIONS]))
    deliver(calling, answering)
    deliver(calling, answering)
    return calling, answering


def test_parts_of_an_answer_wait_for_credit_and_the_last_one_for_none() -> None:
    calling, answering = edges(window=2)
    stream = calling.call(CALL)
    assert deliver(calling, answering)[0] == [CALL]
    parts = [EdgeAnswer(stream=stream, status=200, headers=[(b"c", b"d")])]
    parts += [EdgeAnswer(stream=stream, data=bytes([i])) for i in range(2)]
    for part in parts:
        answering.send(part)
    assert deliver(calling, answering)[1] == parts[:2]
    assert answering.is_behind(stream)
    calling.consumed(stream)
    assert deliver(calling, answering) == ([Credit(stream=stream, count=1)], parts[2:])
    assert not answering.is_behind(stream)
    last = EdgeAnswer(stream=stream, is_last=True)
    answering.send(last)
    assert deliver(calling, answering)[1] == [last]
    assert calling.open_streams == answering.open_streams == {}


def test_an_answer_that_nobody_wants_any_more_ends_and_says_no_more() -> None:
    calling, answering = edges(window=1)
    stream = calling.call(CALL)
    deliver(calling, answering)
    for part in (EdgeAnswer(stream=stream, status=200), EdgeAnswer(stream=stream, data=b"x")):
        answering.send(part)
    calling.abort(stream)
    assert deliver(calling, answering)[0] == [Abort(stream=stream)]
    answering.send(EdgeAnswer(stream=stream, data=b"y"))
    answering.send(failed(stream))
    assert deliver(calling, answering)[1] == [failed(stream)]
    assert answering.open_streams == {}


@pytest.mark.parametrize("wrong", [tokens(1, 0), embedded(1), done(1), Accepted(stream=1)])
def test_a_call_is_answered_by_nothing_else(wrong: Tokens | Embedded | Done | Accepted) -> None:
    calling, _ = edges()
    calling.call(CALL)
    with pytest.raises(ProtocolError, match=f"{type(wrong).__name__} does not belong on stream 1"):
        list(calling.receive(encode(wrong)))


def test_more_of_an_answer_than_there_is_credit_for_breaks_the_protocol() -> None:
    calling, _ = edges(window=1)
    stream = calling.call(CALL)
    part = encode(EdgeAnswer(stream=stream, status=200))
    with pytest.raises(ProtocolError, match="EdgeAnswer without credit on stream 1"):
        list(calling.receive(part + part))


def test_an_edge_of_an_earlier_version_is_sent_no_calls() -> None:
    edge, node = EdgeConnection(hello("edge", versions=[*VERSIONS])), NodeConnection(hello("node"))
    deliver(edge, node)
    deliver(edge, node)
    with pytest.raises(Unavailable, match="answers no other zone's clients"):
        edge.call(CALL)
    assert edge.submit(submit()) == 1
