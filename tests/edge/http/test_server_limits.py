"""What the server refuses on the wire, with raw sockets against a real listener."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from starlette.types import Receive, Scope, Send
from tests.edge.serving import live_through, serving
from tests.edge.support import PATIENCE

from skerry_edge.limits import Limits

LIMITS = Limits(body_bytes=100_000, linger_seconds=0.3, max_connections=8, drain_seconds=1)
HASTY = Limits(
    header_seconds=0.4,
    body_grace_seconds=0.5,
    write_seconds=0.5,
    linger_seconds=0.3,
    drain_seconds=1,
)
flooded = threading.Event()  # set when the endless answer came to an end
GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


async def echo_size(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body; `/early` answers at once, `/flood` writes without end."""
    if scope["type"] == "lifespan":
        await live_through(receive, send)
        return
    size, more = 0, scope["path"] not in ("/early", "/flood")
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while scope["path"] == "/flood" and size < 200:
        await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        size += 1
    flooded.set()
    await send({"type": "http.response.body", "body": str(size).encode()})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(echo_size, LIMITS) as port:
        yield port


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """Another port, where nobody is waited for."""
    with serving(echo_size, HASTY) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def exchange(port: int, data: bytes) -> bytes:
    with connect(port) as connection:
        connection.sendall(data)
        return read_all(connection)


def assert_refused(answer: bytes, status: int) -> None:
    """One answer, a JSON body that both dialects' clients can read, and the connection closed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"content-type: application/json\r\n" in head + b"\r\n"
    assert b"connection: close" in head
    refusal = json.loads(body)
    assert refusal["success"] is False
    assert isinstance(refusal["errors"][0]["code"], int)
    assert refusal["error"]["message"] == refusal["errors"][0]["message"] != ""


def post(size: int, body: bytes = b"", path: bytes = b"/x", close: bool = True) -> bytes:
    connection = b"Connection: close\r\n" if close else b""
    return b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n%b" % (
        path, size, connection, body,
    )  # fmt: skip


CHUNKED = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def test_ordinary_requests_are_served(port: int) -> None:
    assert exchange(port, post(5, b"hello")).endswith(b"\r\n\r\n1\r\n5\r\n0\r\n\r\n")
    assert b"\r\n5\r\n" in exchange(port, CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")
    with connect(port) as connection:
        for _ in range(3):
            connection.sendall(post(5, b"hello", close=False))
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(65536)


def test_a_head_in_single_bytes_is_served(port: int) -> None:
    with connect(port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(5, b"hello"):
            connection.sendall(bytes([byte]))
        assert b" 200 " in read_all(connection)


def test_empty_lines_before_a_request_are_ignored(port: int) -> None:
    assert b" 200 " in exchange(port, b"\r\n\r\n" + post(0))


def test_a_half_sent_header_is_refused_at_the_deadline(hasty: int) -> None:
    assert_refused(exchange(hasty, b"GET /x HTTP/1.1\r\nHost: a\r\nX-Slow:"), 408)


def test_a_silent_connection_is_refused_at_the_deadline(hasty: int) -> None:
    assert_refused(exchange(hasty, b""), 408)


def test_a_slow_second_header_is_refused_too(hasty: int) -> None:
    with connect(hasty) as connection:
        connection.sendall(post(0, close=False))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += connection.recv(65536)
        connection.sendall(b"GET /x HTTP/1.1\r\n")
        assert_refused(read_all(connection), 408)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n", 431),
        (b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 20_000 + b"\r\n", 431),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n\r\n", 400),
        (CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd", 400),
        (b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /x HTTP/1.1\nHost: a\n\n", 400),
        (post(100_001), 413),
        (post(1 << 40), 413),
        (CHUNKED + b"186a1\r\n" + b"x" * 100_001 + b"\r\n0\r\n\r\n", 413),
        (CHUNKED + b"ffffffffffffffff\r\n" + b"x" * 200_000, 413),
        (CHUNKED + b"zz\r\n", 400),
    ],
)
def test_bad_requests_are_refused_at_once(port: int, request_bytes: bytes, status: int) -> None:
    assert_refused(exchange(port, request_bytes), status)


def test_a_refusal_is_readable_while_the_client_still_sends(port: int) -> None:
    """Closing with unread bytes would reset the connection and lose the answer."""
    with connect(port) as connection:
        connection.sendall(post(50_000_000))
        try:
            for _ in range(50):
                connection.sendall(b"x" * 1_000_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert_refused(read_all(connection), 413)


def test_a_body_that_never_comes_is_refused(hasty: int) -> None:
    assert_refused(exchange(hasty, post(100, b"only this")), 408)


def test_an_early_answer_stands_though_the_body_is_slow(hasty: int) -> None:
    answer = exchange(hasty, post(100, b"only this", path=b"/early", close=False))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_pipelined_requests_are_answered_in_turn(port: int) -> None:
    answer = exchange(port, post(5, b"hello", close=False) * 5 + post(3, b"end"))
    assert re.findall(rb"\r\n(\d)\r\n0\r\n\r\n", answer.replace(b"1\r\n", b"")) == [b"5"] * 5 + [
        b"3"
    ]


def test_pipelining_is_bounded(port: int) -> None:
    answer = exchange(port, GET * 5000)
    assert 1 <= answer.count(b"HTTP/1.1 200 ") < 5000


def test_heads_behind_an_unread_body_are_judged_too(port: int) -> None:
    early = post(5, b"hello", path=b"/early", close=False)
    assert exchange(port, early * 3 + post(0)).count(b"HTTP/1.1 200 ") == 4
    answer = exchange(port, early + b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert [answer.count(b"HTTP/1.1 %d " % status) for status in (200, 400)] == [1, 1]


def test_connections_are_bounded() -> None:
    """Whoever waits longest for its client gives its place; answers in progress never do."""
    limits = Limits(max_connections=4, reserved_connections=2, drain_seconds=1, linger_seconds=0.3)
    with serving(echo_size, limits) as port, ExitStack() as held:
        idle = [held.enter_context(connect(port)) for _ in range(4)]
        for each in idle:
            each.sendall(b"GET")
        answered = [held.enter_context(connect(port)) for _ in range(4)]
        for each in answered:
            each.sendall(GET.replace(b"/x", b"/flood"))
            assert each.recv(1)
        for each in idle:
            assert_refused(read_all(each), 408)
        assert_refused(exchange(port, GET), 503)
        probe = GET.replace(b"/x", b"/healthz")
        assert exchange(port, probe).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_reads_nothing_is_cut_off(hasty: int) -> None:
    flooded.clear()
    with connect(hasty) as connection:
        connection.sendall(b"GET /flood HTTP/1.1\r\nHost: a\r\n\r\n")
        assert flooded.wait(PATIENCE), "the application still waits for this client"
        assert b"\r\n0\r\n\r\n" not in read_all(connection)
