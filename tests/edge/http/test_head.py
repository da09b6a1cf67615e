"""Judging a request's head before any parser sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_edge.http.head import Head, Refusal, check_partial, read_head
from skerry_edge.limits import Limits

LIMITS = Limits(header_bytes=1024, header_fields=5, target_bytes=64, body_bytes=100)


def head(*fields: str, line: str = "POST /x HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: a", *fields, "", ""]).encode("latin-1")


def test_an_ordinary_head_passes() -> None:
    fields = ("Content-Type: application/json", "Content-Length: 100", "Authorization: Bearer x")
    read = read_head(head(*fields), LIMITS)
    assert isinstance(read, Head)
    assert (read.method, read.target, read.version, read.body_size) == ("POST", b"/x", "1.1", 100)
    assert (b"content-type", b"application/json") in read.fields
    assert read.keeps_alive
    assert not read.expects_continue


@pytest.mark.parametrize(
    ("raw", "body_size", "keeps_alive", "expects_continue"),
    [
        (head(), 0, True, False),
        (head("Connection: Close"), 0, False, False),
        (head("Connection: keep-alive, close"), 0, False, False),
        (head(line="GET /x HTTP/1.0"), 0, False, False),
        (b"GET /x HTTP/1.0\r\n\r\n", 0, False, False),
        (head("Transfer-Encoding: Chunked", "Expect: 100-continue"), None, True, True),
        (head("Content-Length: 007"), 7, True, False),
    ],
)
def test_what_a_head_says_of_the_message(
    raw: bytes, body_size: int | None, keeps_alive: bool, expects_continue: bool
) -> None:
    read = read_head(raw, LIMITS)
    assert isinstance(read, Head)
    assert (read.body_size, read.keeps_alive, read.expects_continue) == (
        body_size, keeps_alive, expects_continue,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (head("Host: b"), 400, "'host' is given twice"),
        (head("HOST : b"), 400, "malformed"),
        (head().replace(b"Host: a", b"Host: evil/x?y="), 400, "not a host name"),
        (head().replace(b"Host: a", b"Host: a b"), 400, "not a host name"),
        (head("Transfer-Encoding: chunked", line="POST /x HTTP/1.0"), 400, "HTTP/1.0"),
        (head("Content-Length: 1", "content-length: 1"), 400, "'content-length' is given twice"),
        (head("Content-Length: 1", "Transfer-Encoding: chunked"), 400, "exclude each other"),
        (head("Transfer-Encoding: chunked", "transfer-encoding: x"), 400, "given twice"),
        (head("Content-Length: +4"), 400, "Content-Length must be"),
        (head("Content-Length: 4, 4"), 400, "Content-Length must be"),
        (head("Content-Length: -1"), 400, "Content-Length must be"),
        (head("Content-Length: 0x10"), 400, "Content-Length must be"),
        (head("Content-Length: "), 400, "Content-Length must be"),
        (head("Content-Length: 101"), 413, "exceeds 100 bytes"),
        (b"GET /x HTTP/1.1\r\n\r\n", 400, "'host' is missing"),
        (head("Transfer-Encoding: gzip, chunked"), 400, "only Transfer-Encoding"),
        (head("X: a\x00b"), 400, "control characters"),
        (head("X: a\rb"), 400, "control characters"),
        (head("X Y: a"), 400, "malformed"),
        (head("X: a", " folded"), 400, "folded"),
        (head("X: a", "\tfolded"), 400, "folded"),
        (head("no colon"), 400, "malformed"),
        (head(": no name"), 400, "malformed"),
        (head("A: 1", "B: 1", "C: 1", "D: 1", "E: 1"), 431, "more than 5"),
        (head("A: " + "x" * 1024), 431, "exceeds 1024 bytes"),
        (head(line="POST /" + "x" * 64 + " HTTP/1.1"), 414, "exceeds 64 bytes"),
        (head(line="GET ftp://a/x HTTP/1.1"), 400, "starts with '/'"),
        (head(line="GET http:///x HTTP/1.1"), 400, "starts with '/'"),
        (head(line="GET http://u@a/x HTTP/1.1"), 400, "not a host name"),
        (head(line="GET /x%0a HTTP/1.1"), 400, "control characters"),
        (head(line="OPTIONS * HTTP/1.1"), 400, "starts with '/'"),
        (head(line="GET /x HTTP/2.0"), 400, "request line"),
        (head(line="GET /x"), 400, "request line"),
        (head(line="GET  /x HTTP/1.1"), 400, "request line"),
        (head(line="G\x00T /x HTTP/1.1"), 400, "request line"),
        (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400, "CRLF"),
    ],
)
def test_ambiguous_or_excessive_heads_are_refused(raw: bytes, status: int, words: str) -> None:
    refusal = read_head(raw, LIMITS)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, words in refusal.message) == (status, True), refusal


@pytest.mark.parametrize("host", ["", "a", "a.b:8787", "[::1]:80", "xn--e1afmkfd_1.test"])
def test_hosts_that_pass(host: str) -> None:
    read = read_head(head().replace(b"Host: a", f"Host: {host}".encode()), LIMITS)
    assert isinstance(read, Head)


def test_hopeless_beginnings_are_refused_before_they_end() -> None:
    assert check_partial(b"GET / HTTP/1.1\r\nX: " + b"a" * 100, LIMITS) is None
    for partial in (b"\x16\x03\x01", b"GET / HTTP/1.1\nX", b"A: 1\r\n" * 7, b"x" * 1025):
        assert check_partial(partial, LIMITS) is not None


@given(st.binary(max_size=2048))
def test_no_bytes_raise(raw: bytes) -> None:
    check_partial(raw, LIMITS)
    read_head(raw + b"\r\n\r\n", LIMITS)
