"""What is used of the limits that requests have to keep to, by tenant and model.

Nothing is kept of whom nothing limits; of the others, `MAX_METERS` are remembered, who called last
the longest, and whose requests run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from skerry_edge.gate.allowance_use import AllowanceUse
from skerry_edge.gate.quotas import Allowance

MAX_METERS = 100_000

Key = tuple[str, str]
"""Tenant and model, of which "" stands for all."""


class Rates(Protocol):
    """How edges share limits, where they do not have equal parts."""

    def use(self, key: Key) -> AllowanceUse:
        """Return the use of a limit that this edge has not counted yet."""
        ...

    async def ready(self, uses: Sequence[AllowanceUse]) -> None:
        """Wait, for a moment at most, until this edge has what it may use."""
        ...

    async def close(self) -> None:
        """Give back what is not used."""
        ...


class Meters:
    """The uses of limits at one edge."""

    def __init__(self, rates: Rates | None, edges: Callable[[], int]) -> None:
        """Without `rates` each of `edges` lets in an equal part, so that all of them keep to the
        whole without a word to each other."""
        self._rates = rates
        self._edges = edges
        self._uses: OrderedDict[Key, AllowanceUse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def kept(
        self, limits: Iterable[tuple[Key, Allowance]], now: float
    ) -> list[tuple[Key, AllowanceUse]]:
        """Return the uses of what limits a request, up to date with the limits of now."""
        edges, kept = max(1, self._edges()), []
        for key, allowance in limits:
            if allowance.is_unlimited:
                continue
            use = self._uses.get(key)
            if use is None:
                use = AllowanceUse() if self._rates is None else self._rates.use(key)
                self._uses[key] = use
            self._uses.move_to_end(key)
            use.follow(allowance, edges, now)
            kept.append((key, use))
        self._forget(len(kept))
        return kept

    async def ready(self, limits: Iterable[tuple[Key, Allowance]], now: float) -> None:
        """Wait, for a moment at most, until this edge has its part of these."""
        if self._rates is not None:
            await self._rates.ready([use for _, use in self.kept(limits, now)])

    def _forget(self, num_kept: int) -> None:
        """Forget idle ones beyond `MAX_METERS`, but not the newest `num_kept`.

        One in use is as good as requested now: it goes to the end, not to be looked at each time.
        """
        for _ in range(len(self._uses) - num_kept):
            if len(self._uses) <= MAX_METERS:
                return
            key, use = self._uses.popitem(last=False)
            if use.running:
                self._uses[key] = use
