"""What a request's head must look like before a parser sees it. Bytes in, verdict out; no I/O.

h11 parses RFC 9112 well, but is lenient where leniency lets two servers in a row disagree on where
a request ends (request smuggling), and it has no bound on the number of fields. So the raw head,
from the first byte to the blank line, is judged here first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from skerry_edge.limits import Limits

BLANK_LINE = b"\r\n\r\n"

_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,24} ([!-~]+) HTTP/1\.[01]")
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_HOST = re.compile(rb"[0-9A-Za-z.\-_~:\[\]%]{0,255}")
_DIGITS = re.compile(rb"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is not served. `number` is the code of the Workers AI dialect."""

    status: int
    number: int
    message: str


TOO_SLOW_HEADER = Refusal(408, 3007, "The request header did not arrive in time.")
TOO_SLOW_BODY = Refusal(408, 3007, "The request body did not arrive in time.")
TOO_MANY_CONNECTIONS = Refusal(503, 3040, "Too many connections; try again shortly.")


def malformed(message: str) -> Refusal:
    return Refusal(400, 3003, message)


def body_too_large(limit: int) -> Refusal:
    return Refusal(413, 3006, f"The request body exceeds {limit} bytes.")


def target_of(head: bytes) -> bytes:
    """The request target of a head that was checked."""
    return head.split(b" ", 2)[1]


def check_partial(head: bytes, limits: Limits) -> Refusal | None:
    """Judge the beginning of a head that has no blank line yet: hopeless cases need not wait."""
    if head and not 0x21 <= head[0] <= 0x7E:
        return malformed(
            "This is not an HTTP/1.1 request (if it is TLS: this port speaks plain HTTP)."
        )
    if len(head) > limits.header_bytes:
        return Refusal(431, 3003, f"The request header exceeds {limits.header_bytes} bytes.")
    if head.count(b"\n") > limits.header_fields + 1:
        return Refusal(
            431, 3003, f"The request has more than {limits.header_fields} header fields."
        )
    if _BARE_LINE_FEED.search(head):
        return malformed("A header line must end in CRLF.")
    return None


def check_head(head: bytes, limits: Limits) -> Refusal | None:
    """Judge a whole head, from the request line to the blank line inclusive."""
    if refusal := check_partial(head[: -len(b"\r\n")], limits):
        return refusal
    request_line, *fields = head[: -len(BLANK_LINE)].split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        return malformed("The request line is malformed.")
    if not match[1].startswith(b"/"):
        return malformed("The request target must be a path that starts with '/'.")
    if len(match[1]) > limits.target_bytes:
        return Refusal(414, 3003, f"The request target exceeds {limits.target_bytes} bytes.")
    framing = _framing_fields(fields)
    if isinstance(framing, Refusal):
        return framing
    if b"transfer-encoding" in framing and request_line.endswith(b"HTTP/1.0"):
        return malformed("HTTP/1.0 has no Transfer-Encoding.")
    return _check_framing(framing, limits.body_limit(match[1]))


def _framing_fields(fields: list[bytes]) -> dict[bytes, bytes] | Refusal:
    """The fields that say whom a message is for and where it ends, each at most once."""
    framing: dict[bytes, bytes] = {}
    for field in fields:
        if field[:1] in (b" ", b"\t"):
            return malformed("A header value must not be folded over several lines.")
        name, colon, value = field.partition(b":")
        if not colon or name != name.strip() or not name:
            return malformed("A header field is malformed.")
        name = name.lower()
        if name in (b"host", b"content-length", b"transfer-encoding"):
            if name in framing:
                return malformed(f"The header field '{name.decode()}' is given twice.")
            framing[name] = value.strip(b" \t")
    return framing


def _check_framing(framing: dict[bytes, bytes], body_limit: int) -> Refusal | None:
    """Refuse what two servers in a row could read in two ways (RFC 9112, 3.2 and 6.3)."""
    if not _HOST.fullmatch(framing.get(b"host", b"")):
        return malformed("The header field 'host' is not a host name.")
    length = framing.get(b"content-length")
    if length is None:
        return None
    if b"transfer-encoding" in framing:
        return malformed("Content-Length and Transfer-Encoding exclude each other.")
    if not _DIGITS.fullmatch(length):
        return malformed("Content-Length must be a number of bytes.")
    return body_too_large(body_limit) if int(length) > body_limit else None
