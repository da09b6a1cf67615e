"""What may be worked on for a tenant whose requests are then not let in. No I/O.

A request that is let in is paid for: by its tokens, by the limits of its tenant. What is laid out,
tokenised or decoded for one that is refused afterwards is paid for by no one, and takes processor
time from the engines beside. Of that a tenant has a twentieth of a core, and a quarter of a second
at once; whoever took more waits until the debt is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from skerry.errors import RateLimited

RATE = 0.05  # seconds of processor time, per second
AT_ONCE_SECONDS = 0.25
SECONDS_PER_BYTE = 2e-9  # that a body takes on its way through the event loop, about
MAX_TENANTS = 10_000


class PreparationDebt:
    """The debts of tenants. Charged on one thread; read on any."""

    def __init__(self, clock: Callable[[], float], at_once_seconds: float) -> None:
        """`clock` gives seconds."""
        self._most = at_once_seconds / RATE  # seconds until a debt is paid
        self._clock = clock
        self.paid_at: OrderedDict[str, float] = OrderedDict()  # when each debt will be gone

    def charge(self, tenant: str, seconds: float) -> None:
        """Count processor time that was spent on a request which was not let in."""
        now = self._clock()
        paid_at = max(now, self.paid_at.pop(tenant, now)) + seconds / RATE
        self.paid_at[tenant] = paid_at
        while self.paid_at and (
            len(self.paid_at) > MAX_TENANTS or next(iter(self.paid_at.values())) <= now
        ):
            self.paid_at.popitem(last=False)

    def check(self, tenant: str) -> None:
        """Raise `RateLimited` for a tenant that took too much of late: one of `paid_at`."""
        paid_at = self.paid_at.get(tenant)
        if paid_at is None:
            return
        wait = paid_at - self._clock() - self._most
        if wait > 0:
            raise RateLimited(
                "Requests of this account took too much time before they were refused; try again "
                f"in {wait:.3g} s.",
                retry_after=wait,
            )
