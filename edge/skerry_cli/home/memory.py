"""How many KV blocks each model of a node gets. Pure arithmetic; sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 64
DEFAULT_KV_TOKENS = 12288  # 280 MB for the default model; touched only as it fills
DEFAULT_FILE_TIER = "1GiB"  # of disk per model and node: 46,000 tokens of the default model
SMALLEST_KV_TOKENS = 512  # less than this serves no request

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class MemoryTooSmall(Exception):
    """The models do not fit; the message says what they would need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """What a model takes: its weights in any case, and so much for each block of 64 tokens."""

    model: str
    weights: int
    block: int
    context: int = 0  # tokens of its window


def plan_blocks(
    needs: Sequence[MemoryNeed],
    *,
    memory: int | None,
    kv_tokens: int | None,
    free: int | None = None,
) -> list[int]:
    """Return blocks for each model, in order.

    `kv_tokens` (rounded up to whole blocks) is for each model; `memory` is for weights and KV of
    all: everyone gets the least that is of use, and what is left in equal parts. With both,
    `kv_tokens` must fit. With neither, `free` memory decides, where it is known (see
    `_by_what_is_free`). Raises `MemoryTooSmall`.
    """
    if memory is None and kv_tokens is None and free is not None:
        return _by_what_is_free(needs, free)
    if memory is None:
        return [blocks_of(kv_tokens or DEFAULT_KV_TOKENS)] * len(needs)
    wanted = blocks_of(kv_tokens or SMALLEST_KV_TOKENS)
    required = sum(need.weights + wanted * need.block for need in needs)
    if required > memory:
        raise MemoryTooSmall(
            f"--memory {size(memory)} is too small: {_list(needs)} and {wanted * BLOCK_TOKENS} "
            f"tokens of KV each need {size(required)}."
        )
    if kv_tokens is not None:
        return [wanted] * len(needs)
    share = (memory - required) // len(needs)
    return [wanted + share // need.block for need in needs]


def _by_what_is_free(needs: Sequence[MemoryNeed], free: int) -> list[int]:
    """Give each model its context, or the default if that is more, as long as all take at most half
    of what the weights leave; never less than is of use."""
    share = max(0, free - sum(need.weights for need in needs)) // (2 * len(needs)) if needs else 0
    return [
        max(
            blocks_of(SMALLEST_KV_TOKENS),
            min(blocks_of(max(DEFAULT_KV_TOKENS, need.context)), share // need.block),
        )
        for need in needs
    ]


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def size(count: int) -> str:
    """Return bytes as people write them."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def _list(needs: Sequence[MemoryNeed]) -> str:
    return ", ".join(f"{need.model} ({size(need.weights)})" for need in needs)
