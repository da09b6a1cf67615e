"""Work on requests before they are admitted: long prompts, large schemas.

Tenants take turns at its threads, so that what one of them sends holds up no other; see
`FairQueue`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from skerry_edge.telemetry import tracing
from skerry_edge.text.body_room import BodyRoom
from skerry_edge.text.model import TextModel
from skerry_edge.text.preparation_debt import AT_ONCE_SECONDS, PreparationDebt
from skerry_edge.text.token_cache import PrefixMemory
from skerry_regions.process.fair_queue import FairQueue

THREADS = 2

T = TypeVar("T")


class Desk:
    """Belongs to the event loop that first uses it; `close` it from another thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        at_once_seconds: float = AT_ONCE_SECONDS,
    ) -> None:
        """`clock` gives seconds; for `at_once_seconds` see `PreparationDebt`."""
        self.preparation = PreparationDebt(clock, at_once_seconds)
        self.bodies = BodyRoom()
        self.queue = FairQueue("skerry-desk", threads=THREADS)
        self.prefixes = PrefixMemory()

    def of(self, tenant: str) -> TenantDesk:
        """Return a tenant's place at it."""
        return TenantDesk(self, tenant)

    def close(self) -> None:
        """Cancel what waits, and wait for what is in work."""
        self.queue.close()


@dataclass(frozen=True, slots=True)
class TenantDesk:
    """One tenant's place at the desk: its turns, and what is remembered of its prompts."""

    desk: Desk
    tenant: str

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, on a thread. Raises what it and `FairQueue.run` raise, and
        `RateLimited` for a tenant that is in debt (see `PreparationDebt`) when its turn comes."""
        trace, preparation = tracing.current(), self.desk.preparation

        def counted() -> T:
            preparation.check(self.tenant)
            began = time.thread_time()
            try:
                return work()
            finally:
                if trace is not None:
                    trace.prepared_seconds += time.thread_time() - began

        return await self.desk.queue.run(self.tenant, counted)

    def encode(self, text: TextModel, prompt: str) -> list[int]:
        """See `PrefixMemory.encode`."""
        return self.desk.prefixes.encode(text, self.tenant, prompt)
