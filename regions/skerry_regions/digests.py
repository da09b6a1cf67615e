"""Names of a prompt's KV blocks, as nodes name them: what the prefix directory is asked for.

The edge's twin of `skerry_core.blocks`, because an edge has no engine. A test holds the two equal.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

BLOCK_SIZE = 64  # tokens
DIGEST_SIZE = 16  # bytes
TOKEN_BYTES = 4


def full_block_digests(
    model_key: bytes, cache_key: bytes, *parts: Sequence[int]
) -> tuple[bytes, ...]:
    """Chained digests of the full blocks of the token ids of all `parts`, one after the other.

    `model_key` names weights and tokenizer (see `ModelFiles.model_key`), `cache_key` (at most 64
    bytes) the tenant. Raises OverflowError for ids that are no 32-bit unsigned integers.
    """
    tokens = array("I", chain.from_iterable(parts))
    if sys.byteorder == "big":
        tokens.byteswap()
    data = memoryview(tokens).cast("B")
    parent = blake2b(
        model_key, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv root"
    ).digest()
    step = BLOCK_SIZE * TOKEN_BYTES
    digests: list[bytes] = []
    for start in range(0, len(data) - step + 1, step):
        block = blake2b(parent, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv block")
        block.update(data[start : start + step])
        parent = block.digest()
        digests.append(parent)
    return tuple(digests)
