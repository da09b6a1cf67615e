"""The client of the control plane: pages, connections that end, addresses that are wrong."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.provider.client import FIRST_CONTACT_RETRIES, PAGE, ControlPlane
from skerry_terraform.provider.settings import ControlAddress, ProviderSettings

SECONDS = 60


class NoPause(threading.Event):
    """Waiting takes no time."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def settings_at(*ports: int, **more: int) -> ProviderSettings:
    addresses = tuple(ControlAddress("127.0.0.1", port) for port in ports)
    return ProviderSettings(addresses=addresses, token="t", **more)


@contextlib.contextmanager
def serving(server: socketserver.TCPServer) -> Generator[int]:
    """Its port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def control_plane(
    answer: Callable[[str], Any], closed: threading.Event | None = None
) -> ThreadingHTTPServer:
    """With `closed` it closes a connection after one answer, without a word, and then says so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = closed is not None

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            if closed is not None:
                closed.set()

    return Server(("127.0.0.1", 0), Handler)


def test_all_pages_are_read() -> None:
    asked: list[dict[str, list[str]]] = []

    def page(path: str) -> Any:
        query = parse_qs(urlsplit(path).query)
        asked.append(query)
        id = f"{query.get('after', [''])[0]}a"
        return {"items": [{"id": id}], "next": id if len(id) < 3 else None}

    with serving(control_plane(page)) as port:
        client = ControlPlane(
            ProviderSettings(addresses=(ControlAddress("127.0.0.1", port),), token="t"), NoPause()
        )
        assert [each["id"] for each in client.list("pools")] == ["a", "aa", "aaa"]
        client.close()
    limit = [str(PAGE)]
    assert asked == [
        {"limit": limit} | after for after in ({}, {"after": ["a"]}, {"after": ["aa"]})
    ]


def test_a_connection_that_was_closed_meanwhile_costs_no_try() -> None:
    closed = threading.Event()
    with serving(control_plane(lambda path: {}, closed)) as port:
        settings = ProviderSettings(
            addresses=(ControlAddress("127.0.0.1", port),), token="t", max_retries=0
        )
        client = ControlPlane(settings, NoPause())
        for _ in range(3):
            assert client.status() == {}
            assert closed.wait(SECONDS)
            closed.clear()
        client.close()


def test_whoever_leads_of_several_is_found() -> None:
    tried: list[str] = []

    class Follower(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tried.append(self.path)
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with (
        serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Follower)) as following,
        serving(control_plane(lambda path: {"revision": 1})) as leading,
    ):
        client = ControlPlane(settings_at(9, following, leading), NoPause())
        for _ in range(3):
            assert client.status() == {"revision": 1}
        client.close()
    assert len(tried) == 1, "and it stays with that one"


def test_https_where_there_is_none_is_told_soon() -> None:
    tried: list[bytes] = []

    class Plain(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            tried.append(self.request.recv(1 << 16))
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serving(socketserver.TCPServer(("127.0.0.1", 0), Plain)) as port:
        tls = ssl.create_default_context()
        settings = ProviderSettings(
            addresses=(ControlAddress("127.0.0.1", port, tls),), token="t", max_retries=100
        )
        with pytest.raises(ProviderError, match=f"https://127.0.0.1:{port}"):
            ControlPlane(settings, NoPause()).status()
    assert len(tried) == FIRST_CONTACT_RETRIES + 1
