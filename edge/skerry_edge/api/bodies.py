"""Request bodies: read within a bound, decoded into the wire's structs, refused with a path."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from skerry.errors import BodyTooLarge, InvalidInput, InvalidJSON
from skerry_edge.ledger.idempotency import note_body

T = TypeVar("T")

# msgspec's messages end in the place, as in "Expected `int` >= 1 - at `$.messages[0].content`".
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `BodyTooLarge` beyond `limit` bytes, `ClientDisconnect` if it breaks.

    Our own server enforces the limit earlier; this one holds under any ASGI server.
    """
    size = 0
    pieces: list[bytes] = []
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"The request body exceeds {limit} bytes.")
        pieces.append(piece)
    body = b"".join(pieces)
    note_body(request, body)
    return body


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode JSON strictly. Raises `InvalidJSON`, or `InvalidInput` with the field's path."""
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


def invalid_input(reason: str) -> InvalidInput:
    """A validation message of msgspec as an error of ours, the path first."""
    match = _PLACE.match(reason)
    what, path = (match["what"], match["path"]) if match else (reason, None)
    param = path.lstrip(".") if path else None
    what = what.replace("`", "")
    return InvalidInput(
        f"Bad input: {param}: {what}" if param else f"Bad input: {what}", param=param
    )


__all__ = ["ClientDisconnect", "decode", "invalid_input", "read_body"]
