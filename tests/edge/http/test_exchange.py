"""Answers on the wire: how their end is told, and what becomes of those that go wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.edge.serving import live_through, serving

from skerry_edge.limits import Limits

LIMITS = Limits(linger_seconds=0.1, drain_seconds=1)
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
SIZED: Message = {**START, "headers": [(b"content-length", b"5")]}
HELLO: Message = {"type": "http.response.body", "body": b"hello"}
HELL: Message = {"type": "http.response.body", "body": b"hell", "more_body": True}

ANSWERS: dict[str, list[Message]] = {
    "/chunked": [START, HELL, HELLO],
    "/sized": [SIZED, HELLO],
    "/early": [SIZED, HELLO],  # before the body was read
    "/empty": [{**START, "status": 204}, {"type": "http.response.body"}],
    "/too-short": [SIZED, HELL, {"type": "http.response.body"}],
    "/too-long": [SIZED, HELL, HELLO],
    "/split": [{**START, "headers": [(b"x", b"1\r\nset-cookie: a=b")]}, HELLO],
    "/unfinished": [START, HELL],
    "/nothing": [],
    "/headless": [HELLO],
    "/twice": [SIZED, HELLO, HELLO],
}


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends what the path names, once the body was read."""
    if scope["type"] == "lifespan":
        await live_through(receive, send)
        return
    while scope["path"] != "/early" and (await receive())["more_body"]:
        pass
    for message in ANSWERS[scope["path"]]:
        await send(message)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(answer, LIMITS) as port:
        yield port


def exchange(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        received = b""
        try:
            while data := connection.recv(65536):
                received += data
        except ConnectionResetError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return head.lower(), body


def get(port: int, path: str, line: str = "GET {} HTTP/1.1") -> tuple[bytes, bytes]:
    request = f"{line.format(path)}\r\nHost: a\r\nConnection: close\r\n\r\n"
    return exchange(port, request.encode())


def test_an_end_is_told_by_size_by_chunks_or_by_closing(port: int) -> None:
    head, body = get(port, "/chunked")
    assert b"transfer-encoding: chunked" in head
    assert body == b"4\r\nhell\r\n5\r\nhello\r\n0\r\n\r\n"
    head, body = get(port, "/sized")
    assert b"transfer-encoding" not in head
    assert body == b"hello"
    head, body = get(port, "/chunked", "GET {} HTTP/1.0")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"hellhello"


@pytest.mark.parametrize("line", ["HEAD {} HTTP/1.1", "GET {} HTTP/1.1"])
def test_an_answer_without_a_body_has_none(port: int, line: str) -> None:
    path = "/sized" if line.startswith("HEAD") else "/empty"
    head, body = get(port, path, line)
    assert b"transfer-encoding" not in head
    assert (b"content-length: 5" in head) == line.startswith("HEAD")
    assert body == b""


@pytest.mark.parametrize("path", ["/nothing", "/headless", "/split"])
def test_what_cannot_be_sent_is_an_error_of_ours(port: int, path: str) -> None:
    head, body = get(port, path)
    assert head.startswith(b"http/1.1 500 ")
    assert b"set-cookie" not in head
    assert b"Internal error" in body


@pytest.mark.parametrize("path", ["/unfinished", "/too-short", "/too-long"])
def test_an_answer_that_breaks_off_never_looks_whole(port: int, path: str) -> None:
    head, body = get(port, path)
    assert body in (b"", b"hell", b"4\r\nhell\r\n")
    assert b"content-length: 4" not in head


def test_what_follows_a_whole_answer_is_dropped(port: int) -> None:
    assert get(port, "/twice")[1] == b"hello"


def test_a_client_that_waits_to_be_told_is_told(port: int) -> None:
    head = b"POST /sized HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"ab")
        received = b""
        while data := connection.recv(65536):
            received += data
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.endswith(b"hello")


def test_a_client_that_is_answered_instead_cannot_go_on(port: int) -> None:
    """What it sends next may be its body, or the next request."""
    head, body = exchange(
        port,
        b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    )
    assert head.startswith(b"http/1.1 200 ")
    assert b"connection: close" in head
    assert body == b"hello"
