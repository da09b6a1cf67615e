"""A request that will be sent later: its seed is drawn now, so that it has one answer."""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Raw

from skerry.errors import InvalidInput
from skerry_edge.api.bodies import decode

Fields = dict[str, Raw]

SEED_BITS = 63  # what a request's `seed` may hold
NULL, FALSE = b"null", b"false"

_decoder = msgspec.json.Decoder(Fields)


def fields_of(body: bytes | Raw) -> Fields:
    """The fields of a request. Raises `InvalidJSON` or `InvalidInput`."""
    return decode(_decoder, bytes(body))


def payload_of(fields: Fields, *, draws_seed: bool) -> bytes:
    """The request as it will be sent, with a seed where `draws_seed` and it brings none.

    Raises `InvalidInput` for a stream, which nobody would read.
    """
    if not _is_absent(fields, "stream", FALSE):
        raise InvalidInput("Bad input: stream: nobody reads the stream of a queued request",
                           param="stream")  # fmt: skip
    if draws_seed and _is_absent(fields, "seed"):
        fields = {**fields, "seed": Raw(str(secrets.randbits(SEED_BITS)).encode())}
    return msgspec.json.encode(fields)


def _is_absent(fields: Fields, name: str, *like_absent: bytes) -> bool:
    return name not in fields or bytes(fields[name]).strip() in (NULL, *like_absent)
