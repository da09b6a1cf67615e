"""Prompts that stay cached for a time: what a request's pins mean in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from skerry_core.blocks import BlockPool, Digest
from skerry_core.config import BLOCK_SIZE
from skerry_core.request import PinUsage, Request


def pin_prompt(
    pool: BlockPool, request: Request, digests: Sequence[Digest], cached_tokens: int, start: float
) -> PinUsage:
    """Pin the full blocks of a computed prompt, which have these names, as its request says.

    `cached_tokens` were not computed; times count from `start`, on `expire_pins`'s clock.
    """
    ends: list[float] = []
    bounds = [0]
    for num_tokens, seconds in request.pins:
        bounds.append(min(num_tokens, len(request.prompt_ids)) // BLOCK_SIZE)
        ends += [start + seconds] * (bounds[-1] - len(ends))
    change = pool.pin(digests[: len(ends)], ends, request.cache_key)
    written = [place for place in change.new if place >= cached_tokens // BLOCK_SIZE]
    return PinUsage(
        tuple(
            BLOCK_SIZE * sum(first <= place < end for place in written)
            for first, end in pairwise(bounds)
        ),
        BLOCK_SIZE * len(change.lapsed),
    )
