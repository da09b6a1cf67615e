"""The edge-node connection: agreement, and streams in order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.regions.wire.ends import (
    MODEL,
    USAGE,
    build,
    deliver,
    done,
    failed,
    hello,
    pair,
    submit,
    tokens,
)

from skerry.errors import Overloaded, Unavailable
from skerry_regions.wire.connection import Agreement, agree
from skerry_regions.wire.edge_connection import EdgeConnection
from skerry_regions.wire.frames import ProtocolError, encode
from skerry_regions.wire.node_connection import NodeConnection
from skerry_regions.wire.output_marks import ReasoningLimitSpec
from skerry_regions.wire.protocol import (
    VERSIONS,
    Abort,
    Accepted,
    Credit,
    Done,
    Failed,
    Hello,
    Ping,
    Tokens,
)


def test_the_highest_common_version_and_the_smaller_limits_hold() -> None:
    ours = hello("edge", window=8, max_streams=100, versions=[1, 2, 3])
    theirs = hello("node", window=64, max_streams=10, versions=[2, 1])
    assert agree(ours, theirs) == Agreement(
        version=2, max_streams=10, window=8, models=frozenset({MODEL})
    )


@pytest.mark.parametrize("field", ["tokenizer", "template", "numeric_build"])
def test_a_model_known_differently_is_left_out(field: str) -> None:
    ours = Hello(versions=[1], id="edge", models=[build(numeric_build="x")])
    theirs = Hello(
        versions=[1], id="node", models=[build(**{"numeric_build": "x", field: "other"})]
    )
    terms = agree(ours, theirs)
    assert isinstance(terms, Agreement)
    assert terms.models == frozenset()


def test_an_edge_without_a_numeric_build_takes_any() -> None:
    theirs = Hello(versions=[1], id="node", models=[build(numeric_build="numba-1")])
    terms = agree(hello("edge"), theirs)
    assert isinstance(terms, Agreement)
    assert terms.models == {MODEL}


def test_no_common_version_ends_the_connection() -> None:
    edge = EdgeConnection(hello("edge"))
    with pytest.raises(ProtocolError, match=r"no common protocol version.*\[1\].*\[2\]"):
        list(edge.receive(encode(hello("node", versions=[2]))))
    with pytest.raises(ProtocolError, match="no common protocol version"):
        list(edge.receive(b""))


def test_nothing_comes_before_hello_and_hello_comes_once() -> None:
    with pytest.raises(ProtocolError, match="Ping before Hello"):
        list(NodeConnection(hello("node")).receive(encode(Ping(nonce=1))))
    _, node = pair()
    with pytest.raises(ProtocolError, match="a second Hello"):
        list(node.receive(encode(hello("edge"))))


def test_submitting_before_hello_is_the_callers_fault() -> None:
    with pytest.raises(RuntimeError, match="not said Hello"):
        EdgeConnection(hello("edge")).submit(submit())


# --- streams -------------------------------------------------------------------------------------


def test_a_stream_from_submit_to_done() -> None:
    edge, node = pair()
    stream = edge.submit(submit(99, output_ids=[5, 6], epoch=1))
    assert deliver(edge, node)[0] == [submit(stream, output_ids=[5, 6], epoch=1)]
    for event in (tokens(stream, 2, 2), tokens(stream, 4), done(stream)):
        node.send(event)
    assert deliver(edge, node)[1] == [tokens(stream, 2, 2), tokens(stream, 4), done(stream)]
    assert edge.open_streams == node.open_streams == {}


def test_a_stream_is_accepted_once_and_before_its_tokens() -> None:
    edge, node = pair()
    stream = edge.submit(submit())
    deliver(edge, node)
    node.accept(stream)
    assert deliver(edge, node)[1] == [Accepted(stream=stream)]
    node.accept(stream)
    with pytest.raises(ProtocolError, match="Accepted late or twice on stream 1"):
        deliver(edge, node)


def test_stream_numbers_are_never_used_twice() -> None:
    edge, node = pair()
    for number in (1, 2, 3, 4):
        assert edge.submit(submit()) == number
        deliver(edge, node)
        node.send(failed(number))
        assert deliver(edge, node)[1] == [failed(number)]
    with pytest.raises(ProtocolError, match="stream 4 opened after stream 4"):
        list(node.receive(encode(submit(4))))


def test_both_sides_count_streams() -> None:
    edge, node = pair(max_streams=2)
    edge.submit(submit())
    edge.submit(submit())
    with pytest.raises(Overloaded, match="all 2 streams"):
        edge.submit(submit())
    deliver(edge, node)
    with pytest.raises(ProtocolError, match="more than 2 streams"):
        list(node.receive(encode(submit(3))))


def test_a_model_outside_the_agreement_is_not_submitted() -> None:
    edge = EdgeConnection(hello("edge"))
    list(edge.receive(encode(Hello(versions=[1], id="node", models=[build(tokenizer="other")]))))
    with pytest.raises(Unavailable, match=MODEL):
        edge.submit(submit())


def test_a_node_of_the_first_version_is_sent_no_limit_of_reasoning_and_no_pins() -> None:
    edge, node = EdgeConnection(hello("edge", versions=[1, 2])), NodeConnection(hello("node"))
    deliver(edge, node)
    deliver(edge, node)
    limited = replace(submit(), reasoning=ReasoningLimitSpec(max_tokens=8, end_ids=(3,)))
    with pytest.raises(Unavailable, match="does not limit reasoning"):
        edge.submit(limited)
    edge.submit(replace(submit(), pins=((64, 300.0),)))
    assert deliver(edge, node)[0] == [submit(1)]  # the refused one has used no number


def test_a_node_of_the_second_version_is_sent_both() -> None:
    edge, node = (
        EdgeConnection(hello("edge", versions=[*VERSIONS])),
        NodeConnection(hello("node", versions=[*VERSIONS])),
    )
    deliver(edge, node)
    deliver(edge, node)
    limit = ReasoningLimitSpec(max_tokens=8, end_ids=(3,))
    wanted = replace(submit(), reasoning=limit, pins=((64, 300.0),))
    edge.submit(wanted)
    assert deliver(edge, node)[0] == [wanted]


def test_abort_is_told_once_and_the_last_event_still_comes() -> None:
    edge, node = pair()
    stream = edge.submit(submit())
    deliver(edge, node)
    node.send(tokens(stream, 0))  # crosses with the abort
    edge.abort(stream)
    edge.abort(stream)
    got_by_node, got_by_edge = deliver(edge, node)
    assert got_by_node == [Abort(stream=stream)]
    assert got_by_edge == []
    node.send(tokens(stream, 1))  # made before the engine knew
    node.send(Done(stream=stream, finish_reason="cancelled", usage=USAGE))
    [last] = deliver(edge, node)[1]
    assert isinstance(last, Done)
    edge.abort(stream)
    assert edge.data_to_send() == b""


def test_an_abort_that_crosses_with_the_end_is_harmless() -> None:
    edge, node = pair()
    stream = edge.submit(submit())
    deliver(edge, node)
    node.send(done(stream))
    edge.abort(stream)
    assert deliver(edge, node) == ([], [done(stream)])


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (tokens(9, 0), "Tokens for the unopened stream 9"),
        (done(9), "Done for the unopened stream 9"),
        (tokens(1, 0), "Tokens after the end of stream 1"),
        (done(1), "Done after the end of stream 1"),
        (failed(1), "Failed after the end of stream 1"),
        (tokens(2, 1), "Tokens at index 1 on stream 2, expected 0"),
    ],
)
def test_an_edge_refuses_events_out_of_turn(event: Tokens | Done | Failed, what: str) -> None:
    edge, node = pair()
    ended = edge.submit(submit())
    edge.submit(submit())
    deliver(edge, node)
    node.send(done(ended))
    deliver(edge, node)
    with pytest.raises(ProtocolError, match=what):
        list(edge.receive(encode(event)))
    assert tuple(edge.open_streams) == (2,)


@pytest.mark.parametrize("message", [Abort(stream=5), Credit(stream=5, count=1)])
def test_a_node_refuses_messages_of_streams_never_opened(message: Abort | Credit) -> None:
    _, node = pair()
    with pytest.raises(ProtocolError, match="stream 5, which was never opened"):
        list(node.receive(encode(message)))


def test_a_node_ends_a_stream_once() -> None:
    edge, node = pair()
    stream = edge.submit(submit())
    deliver(edge, node)
    node.send(done(stream))
    with pytest.raises(RuntimeError, match="not open"):
        node.send(failed(stream))
