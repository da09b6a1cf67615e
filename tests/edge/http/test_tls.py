"""TLS at the edge: what is offered, and a new certificate without a dropped connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.edge.serving import serving

from skerry_edge.http.tls import Certificate, TLSError
from skerry_edge.limits import Limits
from skerry_edge.reload import Follower
from skerry_regions.address import Address
from skerry_regions.process.pages import is_healthy

PAIRS = Path(__file__).parents[1] / "data" / "tls"  # self-signed, for 127.0.0.1, valid till 2126
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def put(name: str, folder: Path) -> None:
    """Replace the pair in a folder as renewals do: whole files, renamed into place."""
    for kind in ("pem", "key"):
        shutil.copy(PAIRS / f"{name}.{kind}", folder / "draft")
        os.replace(folder / "draft", folder / f"edge.{kind}")


def trusting(*names: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in names:
        context.load_verify_locations(PAIRS / f"{name}.pem")
    return context


def connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def get(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(GET)
    received = b""
    while not received.endswith(b"hello"):
        received += connection.recv(4096)
    return received


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    put("first", tmp_path)
    return Certificate(tmp_path / "edge.pem", tmp_path / "edge.key")


@pytest.fixture
def port(certificate: Certificate) -> Iterator[int]:
    app = Starlette(routes=[Route("/", hello), Route("/healthz", hello)])
    with serving(app, Limits(drain_seconds=1), ssl_context=certificate.context) as port:
        yield port


def test_http_over_tls(port: int) -> None:
    with connect(port, trusting("first")) as connection:
        assert get(connection).startswith(b"HTTP/1.1 200 OK")
        assert connection.version() == "TLSv1.3"


def test_old_versions_are_refused(port: int) -> None:
    context = trusting("first")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(port, context) as connection:
        assert connection.version() == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError), connect(port, context):
        pass


@pytest.mark.parametrize("successor", ["second", "rsa"])
def test_a_new_certificate_drops_no_connection(
    port: int, certificate: Certificate, tmp_path: Path, successor: str
) -> None:
    follower = Follower([certificate.followed()])
    with connect(port, trusting("first")) as old:
        get(old)
        put(successor, tmp_path)
        asyncio.run(follower.look())
        with connect(port, trusting(successor)) as new:
            get(new)
        get(old)
        with pytest.raises(ssl.SSLCertVerificationError), connect(port, trusting("first")):
            pass


def test_a_bad_pair_leaves_the_good_one(
    port: int, certificate: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower([certificate.followed()])
    shutil.copy(PAIRS / "second.pem", tmp_path / "edge.pem")  # without its key
    asyncio.run(follower.look())
    assert "key values mismatch" in caplog.text
    with connect(port, trusting("first")) as connection:
        get(connection)


@pytest.mark.parametrize(
    ("cert", "key", "problem"),
    [
        ("first.pem", "second.key", "key values mismatch"),
        ("first.key", "first.key", "first.key with"),
        ("first.pem", "encrypted.key", "the key is encrypted"),
        ("none.pem", "first.key", "none.pem: cannot be read: No such file or directory"),
    ],
)
def test_pairs_that_cannot_be_used(cert: str, key: str, problem: str) -> None:
    with pytest.raises(TLSError, match=problem):
        Certificate(PAIRS / cert, PAIRS / key)


def test_handshakes_take_places_and_give_them_up(certificate: Certificate) -> None:
    app = Starlette(routes=[Route("/", hello)])
    limits = Limits(drain_seconds=1, max_connections=2)
    with serving(app, limits, ssl_context=certificate.context) as port:
        first, second = (
            socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2)
        )
        with connect(port, trusting("first")) as connection:
            get(connection)
        with first:
            assert first.recv(1) == b"", "the longest silence ends first"
    with second:
        assert second.recv(1) == b"", "nobody waits for it at the end"


def test_a_handshake_takes_its_place_only_so_long(certificate: Certificate) -> None:
    app = Starlette(routes=[Route("/", hello)])
    limits = Limits(drain_seconds=1, max_connections=1, header_seconds=0.2)
    with serving(app, limits, ssl_context=certificate.context) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            assert silent.recv(1) == b""
        with connect(port, trusting("first")) as connection:
            get(connection)


def test_what_is_not_tls_harms_nobody(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        plain.sendall(GET)
        assert not plain.recv(4096).startswith(b"HTTP")
    with connect(port, trusting("first")) as connection:
        get(connection)


def test_a_supervisor_can_ask_for_its_health(port: int) -> None:
    address = Address(host="127.0.0.1", port=port)
    assert asyncio.run(is_healthy(address, tls=True))
    assert not asyncio.run(is_healthy(address))
