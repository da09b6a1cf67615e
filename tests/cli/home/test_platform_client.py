"""Commands find whichever of several control planes leads, and send nothing twice that counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from skerry_cli.home.platform_client import PlatformClient, PlatformError


@contextmanager
def answering(answer: Callable[[str], int]) -> Generator[str]:
    """A server whose status is that of `answer(METHOD PATH)`; 0 ends the connection."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status = answer(f"{self.command} {self.path.removeprefix('/control/v1')}")
            if not status:
                self.connection.close()
                return
            body = {"error": {"type": "t", "message": "m"}} if status >= 300 else {"at": "here"}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_leader_is_found_and_waited_for() -> None:
    asked: list[str] = []

    def leading(what: str) -> int:
        asked.append(what)
        return 503 if len(asked) == 1 else 200  # it has just begun

    with answering(lambda _: 503) as following, answering(leading) as leader:
        client = PlatformClient(f"http://127.0.0.1:9,{following},{leader}", "t")
        assert client.ask("POST", "/rollback", {}) == {"at": "here"}
    assert asked == ["POST /rollback"] * 2


def test_what_may_be_done_already_is_sent_again_only_where_that_does_no_harm() -> None:
    asked: list[str] = []

    def lost(what: str) -> int:
        asked.append(what)
        return 0

    with answering(lost) as first, answering(lambda _: 200) as second:
        client = PlatformClient(f"{first},{second}", "t")
        assert client.ask("POST", "/apply", {}) == {"at": "here"}
        assert client.ask("GET", "/regions") == {"at": "here"}
        with pytest.raises(PlatformError, match="does not answer"):
            client.ask("POST", "/rollback", {})
    assert asked == ["POST /apply", "GET /regions", "POST /rollback"]


def test_one_that_refuses_is_believed() -> None:
    with answering(lambda _: 409) as first, answering(lambda _: 200) as second:
        with pytest.raises(PlatformError) as refused:
            PlatformClient(f"{first},{second}", "t").ask("POST", "/apply", {})
        assert refused.value.status == 409
        with pytest.raises(PlatformError, match="does not answer"):
            PlatformClient("http://127.0.0.1:9", "t").ask("GET", "/regions")
