"""One host with thousands of silent connections: others are served, and so are probes."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.edge.serving import serving

from skerry_edge.http.listener import TURNS, Arrivals
from skerry_edge.limits import Limits

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LIMITS = Limits(max_connections=512, drain_seconds=1, linger_seconds=0.2)
DEFAULT = Limits(drain_seconds=1, linger_seconds=0.2)
CROWDS = [  # limits, and connections of one host, more than there are places
    pytest.param(LIMITS, 600, id="600"),
    pytest.param(DEFAULT, DEFAULT.max_connections + 600, id="4696", marks=pytest.mark.slow),
]
PATIENCE = 60.0
FLOOD = 300  # fewer than wait in the system


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


APP = Starlette(routes=[Route("/", hello), Route("/healthz", hello), Route("/x", hello)])


@contextlib.contextmanager
def many_files(number: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number), hard))
    yield


def ask(port: int, request: bytes = GET) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        return connection.recv(4096)


@pytest.mark.parametrize(("limits", "hostile"), CROWDS)
def test_idle_connections_beyond_all_places_shut_nobody_out(limits: Limits, hostile: int) -> None:
    """Each asked once, and then says nothing: 55 requests a second held 4,096 places."""
    with many_files(4 * hostile), serving(APP, limits) as port, ExitStack() as held:
        for number in range(hostile):
            each = held.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            each.sendall(GET)
            assert b" 200 " in each.recv(4096)
            if number % 100 == 0:
                assert b" 200 " in ask(port)
        for _ in range(20):
            assert b" 200 " in ask(port)
            assert b" 200 " in ask(port, GET.replace(b"/ ", b"/healthz "))


@pytest.mark.parametrize(("limits", "hostile"), CROWDS)
def test_silent_and_dripping_connections_shut_nobody_out(limits: Limits, hostile: int) -> None:
    drip = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n1"
    with many_files(4 * hostile), serving(APP, limits) as port, ExitStack() as held:
        for number in range(hostile):
            each = held.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            each.sendall((b"", b"GET /", drip)[number % 3])
        for _ in range(20):
            assert b" 200 " in ask(port)


def test_a_request_that_crosses_the_closing_of_its_connection_may_be_sent_again() -> None:
    limits = Limits(max_connections=1, drain_seconds=1, linger_seconds=0.2)
    with serving(APP, limits) as port, socket.create_connection(("127.0.0.1", port)) as first:
        first.sendall(GET)
        assert b" 200 " in first.recv(4096)
        assert b" 200 " in ask(port)  # takes the place of the first
        assert first.recv(4096).startswith(b"HTTP/1.1 408 ")


# --- what else is on the wire --------------------------------------------------------------------


def test_half_closed_requests_get_their_answers() -> None:
    with serving(APP, LIMITS) as port:
        for requests in (1, 3):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
                connection.sendall(GET * requests)
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda c=connection: c.recv(4096), b""))
            assert answer.count(b"HTTP/1.1 200 ") == requests
            assert answer.endswith(b"hello")


def test_half_a_request_gets_none() -> None:
    with serving(APP, LIMITS) as port:
        for half in (
            GET[:-2],
            GET + GET[:9],
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
                connection.sendall(half)
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda c=connection: c.recv(4096), b""))
            assert answer.count(b" 200 ") == half.count(b"\r\n\r\nGET")


def test_targets_in_absolute_form() -> None:
    with serving(APP, LIMITS) as port:
        for target in (b"http://b/x?y", b"HTTP://b:80/x", b"https://b", b"http://b?y"):
            assert b" 200 " in ask(port, GET.replace(b"GET /", b"GET " + target))


def test_networks_take_turns() -> None:
    """A flood of one host, which is there first, is not set up before another host's request."""
    order: list[str] = []
    blocked, go_on = threading.Event(), threading.Event()

    async def block(request: Request) -> PlainTextResponse:
        blocked.set()
        go_on.wait(PATIENCE)  # the whole event loop, while all arrive
        return PlainTextResponse("")

    async def note(request: Request) -> PlainTextResponse:
        order.append(request.url.path)
        return PlainTextResponse("")

    paths = {"/block": block, "/flood": note, "/other": note}
    app = Starlette(routes=[Route(*each) for each in paths.items()])
    with serving(app, LIMITS) as port, ExitStack() as held:

        def send(path: bytes, source: str) -> socket.socket:
            each = socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))
            each.sendall(GET.replace(b"/ ", path + b" "))
            return held.enter_context(each)

        send(b"/block", "127.0.0.1")
        assert blocked.wait(PATIENCE)
        for _ in range(FLOOD):
            send(b"/flood", "127.9.0.1")
        other = send(b"/other", "127.0.0.1")
        go_on.set()
        assert b" 200 " in other.recv(4096)
        assert order.index("/other") <= 2 * TURNS


def test_too_many_that_wait_are_those_of_the_largest_network() -> None:
    arrivals, pairs = Arrivals(size=4), ExitStack()
    with pairs:
        made = [pairs.enter_context(socket.socket()) for _ in range(6)]
        for number, network in enumerate("aaab"):
            assert arrivals.put(made[number], network) is None
        assert arrivals.put(made[4], "b") is made[0]
        assert arrivals.put(made[5], "a") is made[1]
        taken = [arrivals.take() for _ in range(len(arrivals))]
        assert taken == [(made[2], "a"), (made[3], "b"), (made[5], "a"), (made[4], "b")]
        assert not arrivals
