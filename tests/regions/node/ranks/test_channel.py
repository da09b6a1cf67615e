"""Channels between ranks, over every kind of stream."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.regions.node.ranks.rank_streams import Streams, proven, streams_of
from tests.regions.wire.tls_links import KEY, LOOPBACK, Machines

from skerry_core.ranks import RankLost
from skerry_core.runners.pipeline.opening import measure_link
from skerry_core.runners.rank_messages import MessageKind, RankMessage, encode
from skerry_regions.node.ranks.channel import AHEAD, MAX_PARTS, SocketChannel
from skerry_regions.node.ranks.stream import TlsStream, prove
from skerry_regions.wire.link_key import LinkRefused

Pair = tuple[SocketChannel, SocketChannel]


@pytest.fixture(params=["unix", "tcp", "tls"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Streams]:
    found = streams_of(request.param, tmp_path)
    yield found
    for stream in found:
        stream.close()


@pytest.fixture
def pair(streams: Streams) -> Iterator[Pair]:
    channels = SocketChannel(streams[0], "rank 1"), SocketChannel(streams[1], "rank 0")
    yield channels
    for channel in channels:
        channel.close()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    rows = np.arange(3 << 20, dtype=np.float32)  # more than a socket holds
    sent = [(b"", b"a"), (rows.data, b"b"), (bytes(range(256)),) * MAX_PARTS]
    sender = threading.Thread(target=lambda: [pair[0].send(*parts) for parts in sent])
    sender.start()
    for parts in sent:
        assert [bytes(part) for part in pair[1].receive()] == [bytes(part) for part in parts]
    sender.join()
    pair[1].send(b"back")
    assert bytes(pair[0].receive()[0]) == b"back"


def test_a_buffer_may_be_overwritten_once_it_is_sent(pair: Pair) -> None:
    rows = np.ones(4, np.float32)
    pair[0].send(rows.data)
    rows[:] = 2
    assert np.frombuffer(pair[1].receive()[0], np.float32).tolist() == [1, 1, 1, 1]


def test_a_link_is_measured(pair: Pair) -> None:
    here, there = pair

    def echo() -> None:
        for _ in range(5):
            rows = RankMessage(there.receive()).array(0, "f4")
            assert rows.shape == (4, 512)
            time.sleep(0.02)
            there.send(*encode(MessageKind.ECHO, [rows]))

    echoing = threading.Thread(target=echo)
    echoing.start()
    sending, arriving = measure_link(here, 512)
    echoing.join()
    assert 0 < sending < arriving
    assert arriving >= 0.01


def test_both_ends_may_send_what_neither_has_room_for(pair: Pair) -> None:
    """Each sends 64 MiB before it receives any."""
    part = np.arange(1 << 20, dtype=np.uint32)

    def send_and_receive(channel: SocketChannel) -> None:
        for number in range(AHEAD):
            channel.send((part + number).data)
        for number in range(AHEAD):
            received = np.frombuffer(channel.receive()[0], np.uint32)
            done.append(bool((received == part + number).all()))

    done = list[bool]()
    threads = [threading.Thread(target=send_and_receive, args=(each,)) for each in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [True] * (2 * AHEAD)


def test_a_sender_waits_for_a_rank_that_does_not_receive(pair: Pair) -> None:
    """What is in between is bounded: AHEAD messages, one in work, and what the system holds."""
    done = threading.Semaphore(0)
    part = bytes(8 << 20)

    def send() -> None:
        for _ in range(AHEAD + 4):
            pair[0].send(part)
            done.release()

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(AHEAD):
        assert done.acquire(timeout=60)
    for _ in range(AHEAD + 4):
        pair[1].receive()
    sender.join()
    assert sender.is_alive() is False


def test_an_end_is_noticed_at_once_and_stays(streams: Streams) -> None:
    one, other = streams
    ended = threading.Event()
    channel = SocketChannel(one, "rank 1", ended=lambda error: ended.set())
    other.shutdown(socket.SHUT_RDWR)
    assert ended.wait(60)
    for _ in range(2):
        with pytest.raises(RankLost, match="rank 1 is lost"):
            channel.receive()
    with pytest.raises(RankLost, match="rank 1 is lost"):
        channel.send(b"x")
    channel.close()


def test_closing_is_not_an_end_of_the_other(streams: Streams) -> None:
    ended = threading.Event()
    channel = SocketChannel(streams[0], "rank 1", ended=lambda error: ended.set())
    channel.close()
    with pytest.raises(RankLost):
        channel.receive()
    assert not ended.is_set()


def test_progress_and_failures_are_reported(streams: Streams) -> None:
    one, other = streams
    reported: list[tuple[str, float]] = []
    leader = SocketChannel(one, "rank 1", progress=lambda *each: reported.append(each))
    rank = SocketChannel(other, "rank 0")
    rank.report("packing weights", 0.5)
    rank.send(b"ready")
    rank.fail("no such file")
    assert bytes(leader.receive()[0]) == b"ready"
    assert reported == [("packing weights", 0.5)]
    with pytest.raises(RankLost, match=r"^no such file$"):
        leader.receive()
    leader.close()
    rank.close()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (struct.pack("<IIQ", 1, 1, 1 << 62), "bytes came"),
        (struct.pack("<II", 1, MAX_PARTS + 1), "no message"),
        (struct.pack("<II", 1, 0), "no message"),
        (struct.pack("<II", 9, 1), "no message"),
        (struct.pack("<IIQ", 2, 1, 8), "no progress"),
        (struct.pack("<IIQ", 3, 1, 1 << 20), "bytes came"),
    ],
)
def test_lengths_are_checked_before_they_are_believed(
    streams: Streams, sent: bytes, message: str
) -> None:
    one, other = streams
    channel = SocketChannel(one, "rank 1")
    other.sendmsg([memoryview(sent)])
    with pytest.raises(RankLost, match=message):
        channel.receive()
    channel.close()


def test_a_rank_that_has_nothing_to_say_shows_that_it_lives(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_regions.node.ranks.channel.PULSE_SECONDS", 0.01)
    one, other = streams
    channels = SocketChannel(one, "rank 1"), SocketChannel(other, "rank 0")
    wait_until(lambda: all(each._num_received > 20 for each in channels))
    channels[0].send(b"among them")
    assert bytes(channels[1].receive()[0]) == b"among them"
    for each in channels:
        each.close()


def test_what_waits_to_be_received_is_no_silence(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an end that is busy and reads no further; of one that reads it is the end."""
    monkeypatch.setattr("skerry_regions.node.ranks.channel.PULSE_SECONDS", 0.01)
    one, other = streams
    other.sendmsg([memoryview((struct.pack("<IIQ", 1, 1, 1) + b"m") * 20)])
    busy = SocketChannel(one, "rank 1", silence_seconds=0.05)
    time.sleep(0.5)
    for _ in range(20):
        assert bytes(busy.receive()[0]) == b"m"
    with pytest.raises(RankLost, match=r"^rank 1 is lost: nothing came for 0\.05 seconds$"):
        busy.receive()
    busy.close()


def test_messages_beyond_the_bounds_are_refused(pair: Pair) -> None:
    for parts in ((), (b"x",) * (MAX_PARTS + 1)):
        with pytest.raises(ValueError, match="1 to 64 parts"):
            pair[0].send(*parts)


# --- proofs --------------------------------------------------------------------------------------


def test_bytes_that_were_changed_on_the_way_end_a_channel(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    one, other = proven(machines.of("a", "node"), machines.of("b", "node"))
    assert isinstance(one, TlsStream)
    channel = SocketChannel(other, "rank 0")
    record = b"\x17\x03\x03" + struct.pack(">H", 64) + bytes(64)  # of no key of theirs
    one._socket.sendall(record)
    with pytest.raises(RankLost, match=r"rank 0 is lost: TLS: .*bad record mac"):
        channel.receive()
    channel.close()
    one.close()


def test_a_machine_that_is_revoked_loses_its_channel(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    own, others = machines.of("a", "node"), machines.of("b", "node")
    one, other = proven(own, others)
    channel = SocketChannel(one, "rank 1")
    machines.revoke("a", "b")
    assert own.certificates is not None
    own.certificates.look()
    with pytest.raises(RankLost, match="rank 1 is lost"):
        channel.receive()
    with pytest.raises(LinkRefused, match="the machine b was revoked"):
        proven(own, others)
    channel.close()
    other.close()


def test_an_end_that_says_nothing_is_waited_for_so_long(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    for credentials in (KEY, machines.of("a", "node")):
        one, other = tcp_pair()
        end = credentials.end(LOOPBACK, "ranks", listens=False)
        with pytest.raises(LinkRefused, match=r"did not prove itself in 0\.1 s"):
            prove(one, end, 0.1)
        one.close()
        other.close()


def test_what_follows_a_proof_is_not_lost() -> None:
    """The caller's first bytes may come with the last of its proof."""
    for _ in range(20):
        caller, answerer = proven(KEY, KEY)
        caller.sendmsg([memoryview(b"at once")])
        received = memoryview(bytearray(7))
        assert answerer.recv_into(received) == 7
        assert bytes(received) == b"at once"
        caller.close()
        answerer.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]
