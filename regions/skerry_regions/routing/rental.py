"""Computes a prefix here that another region has, once going there has cost as much.

The rule of ski rental: rent until the rents add up to the price, then buy; whatever comes later,
that costs at most twice the best that could have been done (Karlin et al. 1988). The rent is what a
request pays for going far because of a prefix; the price is computing it here.

Pure: placements are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from skerry_regions.routing.placement import Demand, Placement
from skerry_regions.view import NodeState

MAX_PAID = 4096  # prefixes that are paid for at once; the oldest are forgotten


class Rental:
    """What was paid so far for each prefix, by the name of its last block."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._paid: OrderedDict[bytes, float] = OrderedDict()

    def goes_far(self, best: Placement, demand: Demand, nodes: Mapping[str, NodeState]) -> bool:
        """Return whether a placement leaves the region for one that has the prompt's prefix."""
        regions = {nodes[best.prefill].region, nodes[best.decode].region}
        return regions != {demand.origin} and best.cached_tokens >= self._block_size

    def has_paid(
        self, far: Placement, near: Placement, demand: Demand, nodes: Mapping[str, NodeState]
    ) -> bool:
        """Take the best placement, and the best one here; return whether here is to be preferred.

        Nothing is counted where the request would go far all the same with the prefix here.
        """
        held, cached = far.cached_tokens, near.cached_tokens
        if cached >= held:
            return False
        prompt, speed = demand.prompt_tokens, nodes[near.prefill].speed
        price = speed.prefill_seconds(prompt - cached, cached)
        price -= speed.prefill_seconds(prompt - held, held)
        rent = far.seconds - (near.seconds - price)
        if rent <= 0:
            return False
        # A prompt that is held whole still computes its last token.
        name = demand.digests[min(-(-held // self._block_size), len(demand.digests)) - 1]
        paid = self._paid.pop(name, 0.0) + rent
        if paid >= price:
            return True
        self._paid[name] = paid
        if len(self._paid) > MAX_PAID:
            self._paid.popitem(last=False)
        return False
