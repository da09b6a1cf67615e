"""Names of a prompt's KV blocks, as nodes name them: what the prefix directory is searched by.

The edge's twin of `skerry_core.blocks`, because an edge has no engine. A test holds the two equal.
A usage journal has names of its own, fewer and shorter ones: `prefix_chain`.
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
CHAIN_NAME_SIZE = 8  # bytes
MAX_CHAIN_BLOCKS = 1 << 18  # 128 names
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


def prefix_chain(model: str, cache_key: bytes, prompt_ids: Sequence[int]) -> bytes:
    """Return names of a prompt's prefixes of `chain_depths` blocks, 8 bytes each, one after the
    other: of two prompts that begin alike, equal names so far.

    They are a keyed digest of the tokens: without `cache_key` (of the tenant, at most 64 bytes)
    no prompt can be guessed by its names, nor compare those of two tenants or homes. They are not
    the names by which nodes know blocks. Raises ValueError without a key, and OverflowError as
    `full_block_digests` does.
    """
    if not cache_key:
        raise ValueError("a chain without a key could be compared with guesses")
    data, step = _as_bytes(array("I", prompt_ids)), BLOCK_SIZE * TOKEN_BYTES
    parent, start, names = model.encode(), 0, []
    for depth in chain_depths(len(prompt_ids) // BLOCK_SIZE):
        digest = blake2b(data[start : depth * step], digest_size=DIGEST_SIZE, key=cache_key,
                         person=b"skerry use chain")  # fmt: skip
        digest.update(parent)
        parent, start = digest.digest(), depth * step
        names.append(parent[:CHAIN_NAME_SIZE])
    return b"".join(names)


def chain_depths(num_blocks: int) -> Iterator[int]:
    """Yield after how many of a prompt's blocks its chain has a name: all up to 16, then eight each
    time they double. What two prompts share is so known to within a ninth."""
    depth = 1
    while depth <= min(num_blocks, MAX_CHAIN_BLOCKS):
        yield depth
        depth += 1 << max(depth.bit_length() - 4, 0)


def _as_bytes(tokens: array[int]) -> memoryview:
    if sys.byteorder == "big":
        tokens.byteswap()
    return memoryview(tokens).cast("B")


def _full_blocks(tokens: array[int]) -> list[memoryview]:
    data, step = _as_bytes(tokens), BLOCK_SIZE * TOKEN_BYTES
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
