"""Bodies end where RFC 9112 says, however they are cut on their way, and where h11 says, too."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skerry_edge.http.body import BodyRefused, ChunkedBody, SizedBody, body_of
from skerry_edge.http.head import Head, Refusal, read_head
from skerry_edge.limits import Limits

LIMITS = Limits(body_bytes=64)
NEXT = b"GET /next"  # of the request behind
LISTS = ("Connection", "connection", "Expect")
NAMES = ("X", "x-y", "Accept", "Upgrade", "Content-Length", "TE", "Host", *LISTS)
IN_CHUNKS, BEHIND = b"3;x\r\nabc\r\n0\r\n\r\n", b"." * LIMITS.body_bytes


def taken(body: SizedBody | ChunkedBody, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """What a body takes of pieces that end at `cuts`, and what lies behind its end."""
    content, rest, start = b"", b"", 0
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        piece, start = data[start:end], end
        if body.is_whole:
            rest += piece
            continue
        part, rest = body.take(piece)
        content += part
    return content, rest


CUTS = st.lists(st.integers(0, 200), max_size=8)


@given(st.binary(max_size=64), CUTS)
def test_a_sized_body_ends_after_its_bytes(content: bytes, cuts: list[int]) -> None:
    body = body_of(len(content), 64)
    assert taken(body, content + NEXT, cuts) == (content, NEXT)
    assert body.is_whole


@given(st.lists(st.binary(min_size=1, max_size=16), max_size=4), CUTS)
def test_a_chunked_body_ends_after_its_last_chunk(chunks: list[bytes], cuts: list[int]) -> None:
    data = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    body = body_of(None, 64)
    assert taken(body, data + b"0\r\nX-Trailer: 1\r\n\r\n" + NEXT, cuts) == (
        b"".join(chunks), NEXT,
    )  # fmt: skip
    assert body.is_whole


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n", 400),
        (b"-1\r\n", 400),
        (b"+1\r\n", 400),
        (b"0x1\r\n", 400),
        (b"1 2\r\n", 400),
        (b"1\n", 400),
        (b"1;\x00\r\n", 400),
        (b"1" * 17 + b"\r\n", 400),
        (b"1;" + b"x" * 300, 400),
        (b"1\r\nab\r\n", 400),
        (b"1\r\na" + b"b" * 300, 400),
        (b"0\r\nno colon\r\n\r\n", 400),
        (b"0\r\n" + b"X: 1\r\n" * 100 + b"\r\n", 400),
        (b"41\r\n", 413),
        (b"20\r\n" + b"x" * 32 + b"\r\n21\r\n", 413),
        (b"ffffffffffffffff\r\n", 413),
    ],
)
def test_what_is_no_body_in_chunks_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BodyRefused) as refused:
        body_of(None, 64).take(data + b" " * 300 if data == b"1\n" else data)
    assert refused.value.refusal.status == status


MEMBERS = ("close", "Close", "closed", "keep-alive", "100-continue", "100-Continue", "", "\t")
fields = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(LISTS),
            st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3).map(", ".join),
        ),
        st.tuples(
            st.sampled_from(NAMES),
            st.one_of(
                st.sampled_from(["1", "chunked", " a ", "a, b", "\t"]),
                st.text(st.characters(codec="latin-1"), max_size=6),
            ),
        ),
    ),
    max_size=5,
)


@given(
    st.sampled_from(["GET", "POST", "P-1", "get", "G(T"]),
    st.sampled_from(["/", "/a?b=%20", "//x", "/%c3%a9", "/\xe9", "*"]),
    st.sampled_from(["1.1", "1.0", "1.2"]),
    st.sampled_from(["Content-Length: 3", "Transfer-Encoding: chunked", "Host: b", "X: 1"]),
    fields,
)
@example("GET", "/", "1.1", "X: 1", [("Connection", "close"), ("Connection", "x")])
@example("GET", "/", "1.1", "X: 1", [("Connection", "closed")])
@example("POST", "/", "1.1", "Content-Length: 3", [("Expect", "100-continue"), ("Expect", "x")])
def test_h11_reads_what_is_not_refused_alike(
    method: str, target: str, version: str, framing: str, others: list[tuple[str, str]]
) -> None:
    lines = [f"{method} {target} HTTP/{version}", "Host: a", framing]
    raw = "\r\n".join([*lines, *(f"{name}:{value}" for name, value in others), "", ""])
    head = read_head(raw.encode("latin-1"), LIMITS)
    if isinstance(head, Refusal):
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw.encode("latin-1"))
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    expects_continue = connection.they_are_waiting_for_100_continue
    connection.receive_data(IN_CHUNKS + BEHIND)  # a body of either kind
    content = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        content += event.data
    rest, _ = connection.trailing_data
    is_chunked = content == b"abc" and rest == BEHIND
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    assert head == Head(
        method=request.method.decode(),
        target=request.target,
        version=request.http_version.decode(),
        fields=list(request.headers),
        body_size=None if is_chunked else len(content),
        keeps_alive=connection.our_state is h11.DONE,
        expects_continue=expects_continue,
    )
    body = body_of(head.body_size, LIMITS.body_bytes)
    assert taken(body, IN_CHUNKS + BEHIND, []) == (content, rest)
