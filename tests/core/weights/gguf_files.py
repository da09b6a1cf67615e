"""GGUF files byte by byte, sound and hostile; what is refused names what is wrong with it."""

from __future__ import annotations

import struct

U64_MAX = 2**64 - 1
U8, BOOL, STRING, ARRAY, U32 = 0, 7, 8, 9, 4  # GGUF's types


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, length: int, items: bytes = b"") -> bytes:
    """An array as a value of type ARRAY."""
    return struct.pack("<IQ", kind, length) + items


def info(
    name: bytes = b"t",
    dims: tuple[int, ...] = (32,),
    kind: int = 0,
    offset: int = 0,
) -> bytes:
    """A tensor's description."""
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    *,
    pairs: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    version: int = 3,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
    data: bytes = bytes(128),
) -> bytes:
    """A file of these parts, whose counts may lie."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(infos) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def a(kind: int, value: bytes) -> bytes:
    """A file with one pair, called `a`."""
    return gguf_bytes(pairs=(pair(b"a", kind, value),))


def numbered(count: int) -> tuple[bytes, ...]:
    return tuple(pair(b"%d" % i, BOOL, b"\1") for i in range(count))


# Headers that every reader refuses. Bounds: 4,096 pairs, 65,536 tensors, keys of 65,535 bytes,
# strings of 1 MiB, arrays of 4,194,304 elements.
HOSTILE_HEADERS = {
    "empty": b"",
    "wrong magic": b"GGML" + bytes(100),
    "only a magic": b"GGUF",
    "old version": gguf_bytes(version=1),
    "later version": gguf_bytes(version=4),
    "big-endian": b"GGUF\x00\x00\x00\x03" + bytes(100),
    "one tensor too many": gguf_bytes(num_tensors=65_537),
    "giant number of tensors": gguf_bytes(num_tensors=U64_MAX),
    "one pair too many": gguf_bytes(pairs=numbered(4097)),
    "giant number of pairs": gguf_bytes(num_pairs=U64_MAX),
    "more pairs than bytes": gguf_bytes(num_pairs=4000, data=b""),
    "key one byte too long": gguf_bytes(pairs=(pair(b"k" * 65_536, BOOL, b"\1"),)),
    "giant key": gguf_bytes(pairs=(struct.pack("<Q", U64_MAX),)),
    "key past the end": gguf_bytes(pairs=(struct.pack("<Q", 60_000),)),
    "key twice": gguf_bytes(pairs=(pair(b"a", BOOL, b"\1"),) * 2),
    "key not UTF-8": gguf_bytes(pairs=(pair(b"\xff", BOOL, b"\1"),)),
    "string one byte too long": a(STRING, text(bytes((1 << 20) + 1))),
    "giant string": a(STRING, struct.pack("<Q", 1 << 60)),
    "string past the end": a(STRING, struct.pack("<Q", 1000)),
    "string not UTF-8": a(STRING, text(b"\xff")),
    "unknown type": a(99, b""),
    "array of arrays": a(ARRAY, array(ARRAY, 1)),
    "array of an unknown type": a(ARRAY, array(99, 0)),
    "array one element too long": a(ARRAY, array(U8, (1 << 22) + 1, bytes((1 << 22) + 1))),
    "giant array": a(ARRAY, array(U32, 1 << 62)),
    "overflowing array": a(ARRAY, array(U32, U64_MAX)),
    "array past the end": a(ARRAY, array(U32, 1000)),
    "giant array of strings": a(ARRAY, array(STRING, 1 << 62)),
    "array of a string one byte too long": a(ARRAY, array(STRING, 1, text(bytes((1 << 20) + 1)))),
    "array of a giant string": a(ARRAY, array(STRING, 2, struct.pack("<Q", U64_MAX))),
    "array of strings past the end": a(ARRAY, array(STRING, 1000)),
}

# Headers at the bounds, which every reader takes.
SOUND_HEADERS = {
    "nothing": gguf_bytes(),
    "version 2": gguf_bytes(version=2),
    "the most pairs": gguf_bytes(pairs=numbered(4096)),
    "the longest key": gguf_bytes(pairs=(pair(b"k" * 65_535, BOOL, b"\1"),)),
    "the longest string": a(STRING, text(b"x" * (1 << 20))),
    "the longest array": a(ARRAY, array(U8, 1 << 22, bytes(1 << 22))),
    "an empty array of strings": a(ARRAY, array(STRING, 0)),
    "the longest string in an array": a(ARRAY, array(STRING, 1, text(b"x" * (1 << 20)))),
}
