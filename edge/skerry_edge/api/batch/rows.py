"""A request that will be sent later: its seed is drawn, and the model's defaults are written down,
now, so that it has one answer."""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Raw

from skerry.errors import InvalidInput
from skerry_edge.api.bodies import decode
from skerry_edge.ledger.batches import GENERATION
from skerry_regions.models.catalog import ModelSpec

Fields = dict[str, Raw]

SEED_BITS = 63  # what a request's `seed` may hold
NULL, FALSE = b"null", b"false"

_decoder = msgspec.json.Decoder(Fields)


def fields_of(body: bytes | Raw) -> Fields:
    """Return the fields of a request. Raises `InvalidJSON` or `InvalidInput`."""
    return decode(_decoder, bytes(body))


def payload_of(fields: Fields, spec: ModelSpec, temperature: float) -> bytes:
    """Return the request as it will be sent: one for text gets a seed where it brings none, and
    today's defaults of the model, else the dialect's `temperature`.

    Raises `InvalidInput` for a stream, which would not be read.
    """
    if not _is_absent(fields, "stream", FALSE):
        raise InvalidInput("Bad input: stream: no one reads the stream of a queued request",
                           param="stream")  # fmt: skip
    if spec.task == GENERATION:
        drawn = {"seed": secrets.randbits(SEED_BITS), **spec.sampling.resolved(temperature)}
        if not drawn["top_k"]:
            del drawn["top_k"]  # that there is none cannot be said in all dialects
        fields |= {
            name: Raw(msgspec.json.encode(value))
            for name, value in drawn.items()
            if _is_absent(fields, name)
        }
    return msgspec.json.encode(fields)


def _is_absent(fields: Fields, name: str, *like_absent: bytes) -> bool:
    return name not in fields or bytes(fields[name]).strip() in (NULL, *like_absent)
