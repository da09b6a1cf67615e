"""Checksums of KV blocks, from the device's memory that they left to that which they enter.

Frames between nodes have checksums of their own, over bytes of the host. These are taken where a
block is gathered and looked at before it is written: they cover the bus, pinned memory, and every
copy between.

A block in canonical form is n little-endian words of 32 bits. Its checksum is

    n + sum(weight(i) * word[i])  mod 2^64

with odd weights of 32 bits, no two the same: a change inside one word is always found, another
except for a chance of about one in 2^32. The order of summing does not matter, so any number of
threads may do it. It stands against accidents, not against forgers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Checksums = NDArray[np.uint64]

SPREAD, MIX = 0x9E3779B1, 0x85EBCA6B  # odd, so that multiplying loses nothing


class KVChecksumError(ValueError):
    """A block is not what left the device that made it; it must be computed again."""


def page_checksums(blocks: NDArray[np.generic]) -> Checksums:
    """Return u64[n] of blocks in canonical form, [n, *kv_format.shape]."""
    words = np.ascontiguousarray(blocks).reshape(len(blocks), -1).view("<u4")
    x = (2 * np.arange(words.shape[1], dtype=np.uint32) + 1) * np.uint32(SPREAD)
    weights = (x ^ (x >> 16 << 1)) * np.uint32(MIX)
    sums = np.zeros(len(words), np.uint64)
    np.einsum("bi,i->b", words, weights, out=sums, dtype=np.uint64)
    return sums + np.uint64(words.shape[1])


def check_pages(expected: Sequence[int] | Checksums, found: Checksums) -> None:
    """Raise KVChecksumError unless blocks have the expected checksums."""
    num_wrong = np.count_nonzero(np.asarray(expected, np.uint64) != found)
    if num_wrong:
        raise KVChecksumError(f"{num_wrong} of {len(found)} KV blocks were spoilt between devices")
