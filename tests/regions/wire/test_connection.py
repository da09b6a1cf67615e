"""The edge-node connection: agreement, order, credit, and that nothing is lost or told twice."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from tests.properties import examples

from skerry.errors import Overloaded, Unavailable
from skerry_regions.wire.agreement import Agreement, agree
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
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
    Embed,
    Embedded,
    EngineBeat,
    Failed,
    Hello,
    ModelBuild,
    PhaseUsage,
    Ping,
    Pong,
    Sampling,
    Submit,
    Tokens,
)

MODEL = "@cf/toy/toy"
USAGE = PhaseUsage(
    prompt_tokens=2,
    cached_tokens=0,
    output_tokens=1,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
)


def build(tokenizer: str = "t", template: str = "c", numeric_build: str = "") -> ModelBuild:
    return ModelBuild(id=MODEL, tokenizer=tokenizer, template=template, numeric_build=numeric_build)


def hello(
    id: str, *, window: int = 4, max_streams: int = 3, versions: list[int] | None = None
) -> Hello:
    return Hello(
        versions=versions or [1], id=id, models=[build()], window=window, max_streams=max_streams
    )


def submit(stream: int = 1, *, output_ids: list[int] | None = None, epoch: int = 0) -> Submit:
    return Submit(
        stream=stream,
        request_id="r",
        epoch=epoch,
        model=MODEL,
        prompt_ids=[1, 2],
        output_ids=output_ids or [],
        sampling=Sampling(),
    )


def embed() -> Embed:
    return Embed(
        stream=1, request_id="r", model=MODEL, texts=[[1, 2]], pooling="mean", normalize=True
    )


def embedded(stream: int) -> Embedded:
    return Embedded(stream=stream, vectors=b"\0\0\0\0")


def tokens(stream: int, index: int, count: int = 1) -> Tokens:
    return Tokens(stream=stream, index=index, token_ids=list(range(index, index + count)))


def done(stream: int) -> Done:
    return Done(stream=stream, finish_reason="length", usage=USAGE)


def failed(stream: int) -> Failed:
    return Failed(stream=stream, code="unavailable", message="gone")


def pair(*, window: int = 4, max_streams: int = 3) -> tuple[EdgeConnection, NodeConnection]:
    """An edge and a node that have greeted each other."""
    edge = EdgeConnection(hello("edge", window=window, max_streams=max_streams))
    node = NodeConnection(hello("node", window=window, max_streams=max_streams))
    assert [type(message) for message in node.receive(edge.data_to_send())] == [Hello]
    assert [type(message) for message in edge.receive(node.data_to_send())] == [Hello]
    return edge, node


def deliver(edge: EdgeConnection, node: NodeConnection) -> tuple[list[object], list[object]]:
    """Carry all bytes both ways; what the node got, and what the edge got."""
    return list(node.receive(edge.data_to_send())), list(edge.receive(node.data_to_send()))


# --- agreement -----------------------------------------------------------------------------------


def test_the_highest_common_version_and_the_smaller_limits_hold() -> None:
    ours = hello("edge", window=8, max_streams=100, versions=[1, 2, 3])
    theirs = hello("node", window=64, max_streams=10, versions=[2, 1])
    assert agree(ours, theirs) == Agreement(
        version=2, max_streams=10, window=8, models=frozenset({MODEL}), mismatches=()
    )


@pytest.mark.parametrize("field", ["tokenizer", "template", "numeric_build"])
def test_a_model_known_differently_is_left_out_by_name(field: str) -> None:
    ours = Hello(versions=[1], id="edge", models=[build(numeric_build="x")])
    theirs = Hello(
        versions=[1], id="node", models=[build(**{"numeric_build": "x", field: "other"})]
    )
    terms = agree(ours, theirs)
    assert isinstance(terms, Agreement)
    assert terms.models == frozenset()
    assert terms.mismatches[0].startswith(f"{MODEL}: our {field} is ")


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
    assert edge.open_streams == node.open_streams == ()


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
    assert edge.open_streams == (2,)


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


# --- properties ----------------------------------------------------------------------------------


def mangled(data: bytearray, positions: list[int], values: bytes) -> bytes:
    for position, value in zip(positions, values, strict=False):
        data[position % len(data)] = value
    return bytes(data)


@given(positions=st.lists(st.integers(0, 10_000), max_size=8), values=st.binary(max_size=8))
def test_damaged_conversations_never_do_more_than_protocol_error(
    positions: list[int], values: bytes
) -> None:
    edge, node = pair()
    for _ in range(3):
        edge.submit(submit())
    deliver(edge, node)
    to_node = bytearray(b"".join(map(encode, (Abort(stream=1), Ping(nonce=5), submit(4)))))
    to_edge = bytearray(b"".join(map(encode, (tokens(1, 0), tokens(2, 0), done(2), failed(3)))))
    with suppress(ProtocolError):
        list(node.receive(mangled(to_node, positions, values)))
    with suppress(ProtocolError):
        list(edge.receive(mangled(to_edge, positions, values)))


class Conversation(RuleBasedStateMachine):
    """Both ends, bytes in flight each way, any order of calls and any split of the bytes.

    Tokens count upwards from the transcript's length, so what the edge has must be a prefix of it.
    """

    WINDOW, MAX_STREAMS = 3, 4

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node = pair(window=self.WINDOW, max_streams=self.MAX_STREAMS)
        self.to_node, self.to_edge = bytearray(), bytearray()
        self.running: dict[int, int] = {}  # at the node: stream -> index of its next token
        self.received: dict[int, list[int]] = {}  # at the edge
        self.unread: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.ended: list[int] = []

    @rule(transcript=st.integers(0, 3))
    def submit(self, transcript: int) -> None:
        if len(self.edge.open_streams) == self.MAX_STREAMS:
            with pytest.raises(Overloaded):
                self.edge.submit(submit())
        else:
            stream = self.edge.submit(submit(output_ids=list(range(transcript))))
            self.received[stream] = list(range(transcript))
            self.unread[stream] = 0

    @precondition(lambda self: self.received)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.received)))
        self.edge.abort(stream)
        self.aborted.add(stream)

    @precondition(lambda self: any(self.unread.values()))
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(s for s, n in self.unread.items() if n)))
        events = data.draw(st.integers(1, self.unread[stream]))
        self.edge.consumed(stream, events)
        self.unread[stream] -= events

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(0, 3))
    def step(self, data: st.DataObject, count: int) -> None:
        stream = data.draw(st.sampled_from(sorted(self.running)))
        self.node.send(tokens(stream, self.running[stream], count))
        self.running[stream] += count

    @precondition(lambda self: self.running)
    @rule(data=st.data(), well=st.booleans())
    def end(self, data: st.DataObject, well: bool) -> None:
        stream = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[stream]
        self.node.send(done(stream) if well else failed(stream))

    @rule(size=st.integers(1, 200))
    def carry_to_node(self, size: int) -> None:
        self.to_node += self.edge.data_to_send()
        piece, self.to_node = bytes(self.to_node[:size]), self.to_node[size:]
        for message in self.node.receive(piece):
            if isinstance(message, Submit):
                self.running[message.stream] = len(message.output_ids)
            elif isinstance(message, Abort):
                assert message.stream in self.running

    @rule(size=st.integers(1, 200))
    def carry_to_edge(self, size: int) -> None:
        self.to_edge += self.node.data_to_send()
        piece, self.to_edge = bytes(self.to_edge[:size]), self.to_edge[size:]
        for message in self.edge.receive(piece):
            if isinstance(message, Tokens):
                assert message.stream not in self.aborted
                self.received[message.stream] += message.token_ids
                self.unread[message.stream] += 1
            elif isinstance(message, Done | Failed):
                self.ended.append(message.stream)

    @invariant()
    def nothing_is_lost_or_told_twice(self) -> None:
        for got in self.received.values():
            assert got == list(range(len(got)))
        assert len(self.ended) == len(set(self.ended))
        assert all(events <= self.WINDOW for events in self.unread.values())

    def teardown(self) -> None:
        """Whatever happened, every stream that is read to its end gets there, exactly once."""
        for _ in range(50):
            self.carry_to_node(1 << 20)
            for stream, next_index in list(self.running.items()):
                self.node.send(tokens(stream, next_index))
                del self.running[stream]
                self.node.send(done(stream))
            self.carry_to_edge(1 << 20)
            for stream in self.unread:
                self.edge.consumed(stream, self.unread[stream])
                self.unread[stream] = 0
            self.nothing_is_lost_or_told_twice()
        assert sorted(self.ended) == sorted(self.received)
        assert self.edge.open_streams == self.node.open_streams == ()


Conversation.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=60, deadline=None
)
TestConversation = Conversation.TestCase


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
    assert edge.open_streams == node.open_streams == ()
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
    assert calling.open_streams == answering.open_streams == ()


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
    assert answering.open_streams == ()


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
