"""Block names as a Bloom filter: what other regions need to know of a region's hot prefixes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

BITS_PER_NAME = 10  # at least; with 4 probes, one of 80 strangers is taken for a member
MAX_NAMES = 16_384  # 1 M tokens of 64-token blocks
MAX_BYTES = 1 << 15  # of the largest filter, a power of two

_HALVES = struct.Struct(">QQ")  # of a digest


class PrefixFilter(Struct, frozen=True):
    """Never misses a name that is in it. Its size is a power of two, or nothing."""

    bits: Annotated[bytes, Meta(max_length=MAX_BYTES)] = b""

    @classmethod
    def of(cls, names: Collection[bytes]) -> PrefixFilter:
        """Of at most `MAX_NAMES` digests; they are random already, so no hash is needed."""
        if len(names) > MAX_NAMES:
            raise ValueError(f"{len(names)} names, at most {MAX_NAMES}")
        if not names:
            return cls()
        size = 1 << max(len(names) * BITS_PER_NAME - 1, 7).bit_length()
        halves = np.frombuffer(b"".join(names), ">u8").astype(np.uint64).reshape(-1, 2)
        bits = np.zeros(size, np.bool_)
        for probe in _probes(halves[:, 0], halves[:, 1], size):
            bits[probe] = True
        return cls(np.packbits(bits, bitorder="little").tobytes())

    def __contains__(self, name: bytes) -> bool:
        bits = self.bits
        first, step = _HALVES.unpack(name)
        return bool(bits) and all(
            bits[probe >> 3] >> (probe & 7) & 1 for probe in _probes(first, step, 8 * len(bits))
        )

    def leading(self, names: Sequence[bytes]) -> int:
        """How many of a prompt's first blocks are in it, without a gap."""
        for count, name in enumerate(names):
            if name not in self:
                return count
        return len(names)


def _probes(first: Any, step: Any, size: int) -> tuple[Any, ...]:
    """Bits of a name by its halves, by double hashing (Kirsch and Mitzenmacher 2006).

    Halves are integers, or uint64 arrays of many names', whose sums only lose bits that the mask
    takes anyway.
    """
    mask, step = size - 1, step | 1
    return tuple(first + number * step & mask for number in range(4))
