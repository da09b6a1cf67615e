"""Heads of HTTP/1 requests out of a stream of bytes, whatever its split: read strictly, or refused.
No I/O.

RFC 9112, without the leniency that lets two servers in a row disagree on where a request ends
(request smuggling), and with a bound on everything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from skerry_edge.http.body import body_limit
from skerry_edge.http.refusal import Refusal, body_too_large, malformed
from skerry_edge.limits import Limits

BLANK_LINE = b"\r\n\r\n"

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,24}) ([!-~]+) HTTP/(1\.[01])")
_NAME = re.compile(_TOKEN + rb"+")
_CONTROL = bytes({*range(0x20), 0x7F} - {0x09})  # line ends included, tabs not
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]+)([/?].*)?")
_CONTROL_IN_PATH = re.compile(rb"%(?:[01][0-9A-Fa-f]|7[Ff])")
_HOST = re.compile(rb"[0-9A-Za-z.\-_~:\[\]%]{0,255}")
_DIGITS = re.compile(rb"[0-9]{1,15}")
_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a request's head says."""

    method: str
    target: bytes  # a path and maybe a query
    version: str  # 1.0 or 1.1
    fields: list[tuple[bytes, bytes]]  # names in lower case, values without the space around them
    body_size: int | None  # bytes; None: it comes in chunks
    keeps_alive: bool  # the client may send again on this connection
    expects_continue: bool  # the client sends its body after a 100 Continue


class HeadReader:
    """Keeps what came of heads: of the next one, or ahead of its turn."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._bytes

    def keep(self, data: bytes) -> bool:
        """Keep what a client sent ahead of an answer; False where it is more than one may."""
        if len(self._bytes) + len(data) > self._limits.header_bytes:
            return False
        self._bytes += data
        return True

    def take_all(self) -> bytes:
        """Return what was kept."""
        data, self._bytes = bytes(self._bytes), bytearray()
        return data

    def read(self, data: bytes) -> tuple[Head | Refusal, bytes] | None:
        """Return a head, or why there is none, and what follows; None where more must come."""
        searched = max(0, len(self._bytes) - len(BLANK_LINE) + 1)
        self._bytes += data
        while self._bytes.startswith(b"\r\n"):  # RFC 9112, 2.2: empty lines before a request
            del self._bytes[:2]
            searched = 0
        if bytes(self._bytes) == b"\r":  # the beginning of one
            return None
        end = self._bytes.find(BLANK_LINE, searched) + len(BLANK_LINE)
        if end < len(BLANK_LINE):
            refusal = check_partial(bytes(self._bytes), self._limits)
            return None if refusal is None else (refusal, b"")
        head, rest = read_head(bytes(self._bytes[:end]), self._limits), bytes(self._bytes[end:])
        self._bytes.clear()
        return head, rest


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
    if head.count(b"\n") != head.count(b"\r\n"):
        return malformed("A header line must end in CRLF.")
    return None


def read_head(head: bytes, limits: Limits) -> Head | Refusal:
    """Return a whole head, from the request line to the blank line inclusive."""
    if refusal := check_partial(head[: -len(b"\r\n")], limits):
        return refusal
    request_line, *lines = head[: -len(BLANK_LINE)].split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        return malformed("The request line is malformed.")
    method, target, version = match.groups()
    if len(target) > limits.target_bytes:
        return Refusal(414, 3003, f"The request target exceeds {limits.target_bytes} bytes.")
    host, target = _origin_form(target)
    if not target.startswith(b"/"):
        return malformed("The request target must be a path that starts with '/', or a URL.")
    if _CONTROL_IN_PATH.search(target.partition(b"?")[0]):
        return malformed("The path must not hold control characters.")
    fields = _fields(lines)
    if isinstance(fields, Refusal):
        return fields
    if host is not None and any(name == b"host" for name, _ in fields):
        fields = [(name, host if name == b"host" else value) for name, value in fields]
    if len(head.translate(None, _CONTROL)) != len(head) - 2 * head.count(b"\r\n"):
        return malformed("A header value must not hold control characters.")
    named = dict(fields)
    body_size = _body_size(named, version, body_limit(target, limits))
    if isinstance(body_size, Refusal):
        return body_size
    is_current = version == b"1.1"
    return Head(
        method=method.decode("ascii"),
        target=target,
        version=version.decode("ascii"),
        fields=fields,
        body_size=body_size,
        keeps_alive=is_current and b"close" not in _members(fields, b"connection"),
        expects_continue=is_current and b"100-continue" in _members(fields, b"expect"),
    )


def _origin_form(target: bytes) -> tuple[bytes | None, bytes]:
    """Split a target in absolute form, as proxies send it, into its host, which counts in place of
    the field (RFC 9112, 3.2.2), and its path and query."""
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        return None, target
    host, rest = match[1], match[2] or b"/"
    return host, rest if rest.startswith(b"/") else b"/" + rest


def _members(fields: list[tuple[bytes, bytes]], name: bytes) -> set[bytes]:
    """Return the members of a list field in lower case, all its lines combined (RFC 9110, 5.3)."""
    listed = b",".join(value for field, value in fields if field == name)
    return {member.strip(b" \t") for member in listed.lower().split(b",")}


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]] | Refusal:
    """Return names and values; those that say whom a message is for and where it ends, at most
    once."""
    fields: list[tuple[bytes, bytes]] = []
    seen: set[bytes] = set()
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            return malformed("A header value must not be folded over several lines.")
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            return malformed("A header field is malformed.")
        name = name.lower()
        if name in _FRAMING:
            if name in seen:
                return malformed(f"The header field '{name.decode()}' is given twice.")
            seen.add(name)
        fields.append((name, value.strip(b" \t")))
    return fields


def _body_size(named: dict[bytes, bytes], version: bytes, limit: int) -> int | Refusal | None:
    """Return bytes of the body, None of one in chunks. Refuses what two servers in a row could read
    in two ways (RFC 9112, 3.2 and 6.3)."""
    host, length = named.get(b"host"), named.get(b"content-length")
    if host is None and version != b"1.0":
        return malformed("The header field 'host' is missing.")
    if not _HOST.fullmatch(host or b""):
        return malformed("The header field 'host' is not a host name.")
    if (coding := named.get(b"transfer-encoding")) is not None:
        if version == b"1.0":
            return malformed("HTTP/1.0 has no Transfer-Encoding.")
        if length is not None:
            return malformed("Content-Length and Transfer-Encoding exclude each other.")
        if coding.lower() != b"chunked":
            return malformed("The only Transfer-Encoding that is understood is 'chunked'.")
        return None
    if length is None:
        return 0
    if not _DIGITS.fullmatch(length):
        return malformed("Content-Length must be a number of bytes.")
    return body_too_large(limit) if int(length) > limit else int(length)
