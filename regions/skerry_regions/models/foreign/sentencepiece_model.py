"""`tokenizer.model` of SentencePiece: its protobuf, read within bounds.

sentencepiece_model.proto (https://github.com/google/sentencepiece). A file is not trusted: lengths
are checked against it, and what is not requested is walked over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

MAX_SIZE: Final = 64 << 20  # bytes; the largest vocabularies have 5 MB
MAX_PIECES: Final = 1 << 20
_UNIGRAM, _BPE = 1, 2
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types

Field = tuple[int, int | bytes]  # its number, and a varint's value or bytes


class SentencePieceError(ValueError):
    """A file that is no SentencePiece model, or one of a kind that is not supported."""


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """Pieces with their scores and types (as `tokenizer.ggml.token_type` numbers them)."""

    kind: Literal["bpe", "unigram"]
    pieces: list[str]
    scores: list[float]
    types: list[int]
    unknown_id: int
    charsmap: bytes  # precompiled normalisation; empty: none
    adds_space_prefix: bool
    removes_extra_spaces: bool


def parse(data: bytes, file: str) -> SentencePieceModel:
    """Parse a model; `file` is its name in errors. Raises SentencePieceError."""
    try:
        return _parse(data, file)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise SentencePieceError(f"{file} is not a SentencePiece model ({error})") from None


def _parse(data: bytes, file: str) -> SentencePieceModel:
    pieces, scores, types = list[str](), list[float](), list[int]()
    trainer, normalizer = dict[int, int | bytes](), dict[int, int | bytes]()
    for number, value in _fields(data):
        if number not in (1, 2, 3):
            continue
        if not isinstance(value, bytes):
            raise SentencePieceError(f"{file} is not a SentencePiece model")
        inner = dict(_fields(value))
        if number == 1:
            text, score = inner.get(1, b""), inner.get(2, b"\0\0\0\0")
            if not isinstance(text, bytes) or not isinstance(score, bytes):
                raise SentencePieceError(f"{file} is not a SentencePiece model")
            pieces.append(text.decode())
            scores.append(struct.unpack("<f", score)[0])
            types.append(_whole(inner, 3, 1))
        elif number == 2:
            trainer = inner
        else:
            normalizer = inner
    if not 1 <= len(pieces) <= MAX_PIECES:
        raise SentencePieceError(f"{file} has {len(pieces)} pieces, 1 to {MAX_PIECES} are read")
    kind = _whole(trainer, 3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise SentencePieceError(
            f"{file}: model_type {kind} is not supported, only unigram and BPE"
        )
    charsmap = normalizer.get(2, b"")
    return SentencePieceModel(
        kind="bpe" if kind == _BPE else "unigram",
        pieces=pieces,
        scores=scores,
        types=types,
        unknown_id=next((i for i, each in enumerate(types) if each == 2), 0),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        adds_space_prefix=bool(_whole(normalizer, 3, 1)),
        removes_extra_spaces=bool(_whole(normalizer, 4, 1)),
    )


def _whole(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    return value if isinstance(value, int) else default


def _fields(data: bytes) -> Iterator[Field]:
    """Yield a message's fields in their order. Raises IndexError where it ends too early."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise IndexError(f"wire type {kind} at byte {at}")
        if size > len(data) - at:
            raise IndexError(f"{size} bytes at {at} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError(f"a number of more than 64 bits at byte {at}")
