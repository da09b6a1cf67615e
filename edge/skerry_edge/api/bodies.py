"""Request bodies: decoded into the wire's structs, or refused with a path."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from skerry.errors import BodyTooLarge, InvalidInput, InvalidJSON
from skerry_edge.api.fields import NOTHING, KnownFields, Upstream, shown, strict

# What a body may make of objects: a byte each of `[],[],…` took the event loop a second for 8 MiB.
MAX_CONTAINERS = 1 << 17  # lists and objects
MAX_ITEMS = 1 << 19  # of all of them
CONTAINER_BYTES, ITEM_BYTES, KEY_BYTES = 128, 64, 128  # of memory, once decoded, about
LOOSE_BYTES = 1 << 18  # of a count in which brackets and commas in strings are counted too
PIECE_BYTES = 1 << 18  # looked at in one go, which holds the GIL

_CODINGS = {"": None, "identity": None, "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

# msgspec's messages end in the place, as in "Expected `int` >= 1 - at `$.messages[0].content`".
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Body(Generic[S]):
    """Decodes the body of one kind of request, and says which of its fields are left out."""

    def __init__(
        self, kind: type[S], upstream: Upstream = NOTHING, *, corrects: bool = False
    ) -> None:
        """See `KnownFields`."""
        self.kind = kind
        self.upstream = upstream
        self._decoder = msgspec.json.Decoder(kind)
        self._fields = KnownFields(kind, upstream, corrects=corrects)

    @functools.cached_property
    def _strict_decoder(self) -> msgspec.json.Decoder[S]:
        return msgspec.json.Decoder(strict(self.kind))

    def decode(self, body: bytes, *, is_strict: bool = False) -> tuple[S, list[str]]:
        """Return the request, and the fields of the body that change nothing; `object_bytes` has
        looked at the body before.

        Raises as `decode` and `KnownFields.left_out` do; `InvalidInput` with `is_strict`, or
        `options.strict` of the request, for any field that would be left out.
        """
        if not any(sign in body for sign in self._fields.signs):
            try:
                return _decoded(self._strict_decoder, body), []  # as nearly always
            except (InvalidInput, InvalidJSON):
                pass  # it is wrong, or has more than that
        asked = _decoded(self._decoder, body)
        ignored = list(self._fields.left_out(body))
        if ignored and (is_strict or _is_strict(asked)):
            name = shown(ignored[0])
            raise InvalidInput(
                f"Bad input: {name}: no such field here; without options.strict it is ignored",
                param=name,
            )
        return asked, ignored


def _is_strict(asked: Struct) -> bool:
    return bool(getattr(getattr(asked, "options", None), "strict", None))


def coding_of(given: str) -> str | None:
    """Return the coding that a `content-encoding` names: gzip, deflate, or None for none.

    Raises `InvalidInput` for another (415).
    """
    given = given.strip()
    try:
        return _CODINGS[given.lower()]
    except KeyError:
        raise InvalidInput(
            f"Bad input: content-encoding: {given[:40]!r} is not taken; send gzip, deflate, or no "
            "coding",
            param="content-encoding",
            http_status=415,
        ) from None


def unpacked(body: bytes, coding: str, limit: int) -> bytes:
    """Return a body without its coding (RFC 9110, 8.4.1). Takes time: not for the event loop.

    Raises `BodyTooLarge` beyond `limit` bytes, of which no more are made; `InvalidInput` for what
    is not so coded, or not to its end.
    """
    unpacker = zlib.decompressobj(wbits=_window_bits(body, coding))
    try:
        content = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidInput(
            f"Bad input: the body is no {coding}", param="content-encoding"
        ) from None
    if len(content) > limit:
        raise BodyTooLarge(f"The request body exceeds {limit} bytes.")
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidInput(f"Bad input: the body is no whole {coding}", param="content-encoding")
    return content


def _window_bits(body: bytes, coding: str) -> int:
    """Return zlib's name of a format. Some clients call bare deflate so, without zlib's two bytes
    before it."""
    if coding == "gzip":
        return 16 + zlib.MAX_WBITS
    has_zlib_header = body[:1] and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    return zlib.MAX_WBITS if has_zlib_header else -zlib.MAX_WBITS


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode JSON strictly. Raises `InvalidJSON`, or `InvalidInput` with the field's path."""
    object_bytes(body)
    return _decoded(decoder, body)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    if not body.strip():
        raise InvalidJSON("The request body is empty; send a JSON object.")
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look inside strings that it skips
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise invalid_input(str(exc)) from None
    except UnicodeDecodeError as exc:
        raise InvalidJSON(
            f"The request body is not UTF-8: {exc.reason} at byte {exc.start}."
        ) from None
    except msgspec.DecodeError as exc:
        raise InvalidJSON(f"The request body is not valid JSON: {exc}.") from None
    except RecursionError:
        raise InvalidJSON("The request body is nested too deeply.") from None


def object_bytes(body: bytes) -> int:
    """Return about how much memory the lists and objects of a body will take, and what is in them.

    Raises `InvalidInput` for too many, before any is made. Only what seems to hold many, brackets
    and commas in strings counted too, is looked at without its strings; what holds too many is not
    looked at to its end.
    """
    found = _counted(_pieces(body))
    if found is None or found > LOOSE_BYTES:
        found = _counted(_pieces_without_strings(body))
    if found is None:
        raise InvalidInput(
            f"Bad input: the body has more than {MAX_CONTAINERS} lists and objects, or {MAX_ITEMS} "
            "things in them"
        )
    return found


def _counted(pieces: Iterator[bytes]) -> int | None:
    """Return the memory of a body's objects; None for too many."""
    containers = items = keys = 0
    for piece in pieces:
        containers += piece.count(b"[") + piece.count(b"{")
        items += piece.count(b",")
        keys += piece.count(b":")
        if containers > MAX_CONTAINERS or items > MAX_ITEMS:
            return None
    return containers * CONTAINER_BYTES + items * ITEM_BYTES + keys * KEY_BYTES


def _pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def _pieces_without_strings(body: bytes) -> Iterator[bytes]:
    """Yield what lies outside of strings, up to one that has no end."""
    start = 0
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        outside, quote, rest = _STRING.sub(b"", piece).partition(b'"')
        yield outside
        start += len(piece)
        if quote:  # of a string that goes on behind the piece
            string = _STRING.match(body, start - len(rest) - 1)
            start = len(body) if string is None else string.end()


def invalid_input(reason: str) -> InvalidInput:
    """Return a validation message of msgspec as an error of ours, the path first."""
    match = _PLACE.match(reason)
    what, path = (match["what"], match["path"]) if match else (reason, None)
    param = path.lstrip(".") if path else None
    what = what.replace("`", "")
    return InvalidInput(
        f"Bad input: {param}: {what}" if param else f"Bad input: {what}", param=param
    )
