"""Names of a prompt's KV blocks, as nodes name them: what the prefix directory is searched by.

The edge's twin of `skerry_core.blocks`, because an edge has no engine. A test holds the two equal.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain

BLOCK_SIZE = 64  # tokens
DIGEST_SIZE = 16  # bytes
TOKEN_BYTES = 4
SHARED_KEY = b""  # of the scope that all tenants share


def full_block_digests(
    model_key: bytes,
    cache_key: bytes,
    *parts: Sequence[int],
    is_shared: Callable[[bytes], bool] = lambda digest: False,
) -> tuple[bytes, ...]:
    """Return chained digests of the full blocks of the token ids of all `parts`, one after the
    other.

    `model_key` names weights and tokenizer (see `ModelFiles.model_key`), `cache_key` (at most 64
    bytes) the tenant. Leading blocks whose name in the scope of operators' prompts `is_shared` are
    named there. Raises OverflowError for ids that are no 32-bit unsigned integers.
    """
    blocks = _full_blocks(array("I", chain.from_iterable(parts)))
    digests: list[bytes] = []
    for name in _chain(model_key, SHARED_KEY, None, blocks):
        if not is_shared(name):
            break
        digests.append(name)
    parent = digests[-1] if digests else None
    digests += _chain(model_key, cache_key, parent, blocks[len(digests) :])
    return tuple(digests)


def _full_blocks(tokens: array[int]) -> list[memoryview]:
    if sys.byteorder == "big":
        tokens.byteswap()
    data, step = memoryview(tokens).cast("B"), BLOCK_SIZE * TOKEN_BYTES
    return [data[start : start + step] for start in range(0, len(data) - step + 1, step)]


def _chain(
    model_key: bytes, cache_key: bytes, parent: bytes | None, blocks: Iterable[memoryview]
) -> Iterator[bytes]:
    """Yield names of blocks that follow `parent`, or begin a sequence."""
    if parent is None:
        parent = blake2b(
            model_key, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv root"
        ).digest()
    for content in blocks:
        block = blake2b(parent, digest_size=DIGEST_SIZE, key=cache_key, person=b"skerry kv block")
        block.update(content)
        parent = block.digest()
        yield parent
