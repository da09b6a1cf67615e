"""A hub on loopback: it speaks huggingface.co's HTTP, with a second port as its content network.

`tests/regions/models/hub/test_hub.py` holds it to what `huggingface_hub` expects. Faults are
scripted: each is used up once, unless a test says otherwise.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 10_000  # bytes from which a file is in LFS
CHUNK = 64 << 10
HEAD = 1 << 20  # bytes, at most, of a body that is a look at a header
GRANTED, NOT_GRANTED = "hf_granted", "hf_not_granted"  # tokens


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    license: str = "apache-2.0"

    @property
    def commit(self) -> str:
        names = "".join(sorted(self.files)) + "".join(
            hashlib.sha256(data).hexdigest() for _, data in sorted(self.files.items())
        )
        return hashlib.sha1(names.encode()).hexdigest()


@dataclass(frozen=True)
class Asked:
    """A request that was received."""

    server: str  # "hub" or "cdn"
    method: str
    path: str
    range: str
    has_token: bool


@dataclass
class LocalHub:
    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    hub_statuses: list[int] = field(default_factory=list)  # of the next answers, with Retry-After 0
    cdn_statuses: list[int] = field(default_factory=list)
    knows_ranges: bool = True
    cut_after: int | None = None  # bytes of each body, for `cuts` bodies
    cuts: int = 0
    corrupt: int = 0  # bodies that get a wrong byte
    corrupt_later: int = 0  # the same, after the first body
    link_uses: int | None = None  # after which a signed link is refused
    weak_etags: bool = False
    etag_changes: list[str] = field(default_factory=list)  # ETags of the next answers, then usual
    claims: dict[str, int] = field(default_factory=dict)  # bytes that a file is said to have
    hold_after: int | None = None  # bytes of all bodies, then those beyond HEAD wait
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    sent: int = 0  # bytes of bodies by the content network
    endpoint: str = ""
    cdn: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _uses: dict[str, int] = field(default_factory=dict)
    _links: int = 0

    def ranges(self) -> list[str]:
        return [each.range for each in self.asked if each.server == "cdn" and each.method == "GET"]

    # --- the hub

    def answer_hub(self, handler: BaseHTTPRequestHandler) -> None:
        if self.hub_statuses:
            return reply(handler, self.hub_statuses.pop(0), {"Retry-After": "0"})
        path = unquote(urlsplit(handler.path).path)
        authorization = handler.headers.get("Authorization", "")
        name = "/".join(path.removeprefix("/api/models").strip("/").split("/")[:2])
        repo = self.repos.get(name)
        token = authorization.removeprefix("Bearer ")
        if repo is None or (repo.private and token != GRANTED):
            return refuse(handler, 404 if token else 401, "RepoNotFound")
        if path.startswith("/api/models/"):
            return self._describe(handler, name, repo, path)
        _, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        if revision not in ("main", repo.commit):
            return refuse(handler, 404, "RevisionNotFound")
        if repo.gated and token != GRANTED:
            return refuse(handler, 403 if token else 401, "GatedRepo")
        if file not in repo.files:
            return refuse(handler, 404, "EntryNotFound")
        data = repo.files[file]
        headers = {"X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        if len(data) < LARGE:
            return reply(handler, 200, headers | {"ETag": f'"{git_id(data)}"'}, data)
        with self._lock:
            self._links += 1
            location = f"{self.cdn}/{name}/{file}?signature={self._links}"
        sha256 = hashlib.sha256(data).hexdigest()
        linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(data))}
        return reply(handler, 302, headers | linked | {"Location": location})

    def _describe(self, handler: BaseHTTPRequestHandler, name: str, repo: Repo, path: str) -> None:
        revision = path.partition("/revision/")[2] or path.partition("/tree/")[2] or "main"
        if revision.split("?")[0] not in ("main", repo.commit):
            return refuse(handler, 404, "RevisionNotFound")
        if "/tree/" in path:
            tree = [
                {"type": "file", "path": file, **described(data)}
                for file, data in repo.files.items()
            ]
            return reply(handler, 200, {}, json.dumps(tree).encode())
        siblings = []
        for file, data in repo.files.items():
            entry = described(data)
            if file in self.claims:
                entry["size"] = entry["lfs"]["size"] = self.claims[file]
            entry["rfilename"], entry["blobId"] = file, entry.pop("oid")
            if "lfs" in entry:
                entry["lfs"]["sha256"] = entry["lfs"].pop("oid")
            siblings.append(entry)
        told: dict[str, Any] = {
            "id": name,
            "modelId": name,
            "sha": repo.commit,
            "gated": "manual" if repo.gated else False,
            "private": repo.private,
            "tags": [f"license:{repo.license}"],
            "siblings": siblings,
        }
        return reply(handler, 200, {}, json.dumps(told).encode())

    # --- the content network

    def answer_cdn(self, handler: BaseHTTPRequestHandler) -> None:
        if self.cdn_statuses:
            return reply(handler, self.cdn_statuses.pop(0), {"Retry-After": "0"})
        parts = urlsplit(handler.path)
        owner, name, file = unquote(parts.path).strip("/").split("/", 2)
        with self._lock:
            uses = self._uses[parts.query] = self._uses.get(parts.query, 0) + 1
        if self.link_uses is not None and uses > self.link_uses:
            return reply(handler, 403, {})
        data = self.repos[f"{owner}/{name}"].files[file]
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        if self.etag_changes:
            etag = self.etag_changes.pop(0)
        headers = {"ETag": f"W/{etag}" if self.weak_etags else etag, "Accept-Ranges": "bytes"}
        asked, if_range = handler.headers.get("Range"), handler.headers.get("If-Range")
        if asked and self.knows_ranges and if_range in (None, etag):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(data) - 1), len(data) - 1) + 1
            if start >= len(data):
                return reply(handler, 416, {"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            return self._send(handler, 206, headers, data[start:end])
        return self._send(handler, 200, headers, data)

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
    ) -> None:
        with self._lock:
            if self.corrupt_later and self.sent:
                self.corrupt_later, self.corrupt = self.corrupt_later - 1, self.corrupt + 1
            if self.corrupt and body:
                self.corrupt -= 1
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            cut = None
            if self.cuts and self.cut_after is not None and len(body) > self.cut_after:
                self.cuts -= 1
                cut = self.cut_after
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        for start in range(0, len(body) if cut is None else cut, CHUNK):
            is_head = len(body) <= HEAD
            if self.hold_after is not None and self.sent >= self.hold_after and not is_head:
                self.held.set()
                self.release.wait(60)
            end = start + CHUNK if cut is None else min(start + CHUNK, cut)
            handler.wfile.write(body[start:end])
            with self._lock:
                self.sent += len(body[start:end])
        if cut is not None:
            handler.close_connection = True
            handler.connection.close()


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def described(data: bytes) -> dict[str, Any]:
    """A file as a tree of the hub has it."""
    entry: dict[str, Any] = {"oid": git_id(data), "size": len(data)}
    if len(data) >= LARGE:
        sha256 = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
    return entry


def reply(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes = b""
) -> None:
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def refuse(handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
    reply(handler, status, {"X-Error-Code": code, "X-Error-Message": code})


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed, or have seen enough, break connections."""


@contextmanager
def serving(hub: LocalHub) -> Generator[LocalHub]:
    """Both ports, until the block ends."""

    def handler_of(server: str, answer: Callable[[Any], None]) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                token = bool(self.headers.get("Authorization"))
                path = urlsplit(self.path).path
                asked = Asked(server, self.command, path, self.headers.get("Range", ""), token)
                hub.asked.append(asked)
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Tests look at `asked`."""

        return Handler

    servers = [
        _Server(("127.0.0.1", 0), handler_of("hub", hub.answer_hub)),
        _Server(("127.0.0.1", 0), handler_of("cdn", hub.answer_cdn)),
    ]
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{each.server_port}" for each in servers)
    threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.daemon_threads = True
        thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
