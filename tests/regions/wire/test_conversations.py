"""Conversations of an edge and a node, at random and damaged: nothing is lost or told twice."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.properties import examples
from tests.regions.wire.ends import deliver, done, failed, pair, submit, tokens

from skerry.errors import Overloaded
from skerry_regions.wire.frames import ProtocolError, encode
from skerry_regions.wire.protocol import (
    Abort,
    Done,
    Failed,
    Ping,
    Submit,
    Tokens,
)


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
        assert self.edge.open_streams == self.node.open_streams == {}


Conversation.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=60, deadline=None
)


TestConversation = Conversation.TestCase
