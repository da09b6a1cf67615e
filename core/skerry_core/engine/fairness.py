"""Fairness between tenants: the virtual-token counter (Sheng et al., OSDI '24) in engine seconds.

Each tenant that has requests has a counter of the service it got; who got least is served next. A
tenant that comes back is lifted to the least counter of those present, so that being away earns
nothing. One whose counter was lifted has had no more than its share: it is a *newcomer* until its
first service.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_DEPARTED = 4096  # counters kept of tenants without requests; bounds memory, not fairness


class FairShare:
    """Service per tenant. Knows how many requests each tenant has, and not which."""

    def __init__(self) -> None:
        self._service: dict[str, float] = {}  # engine seconds of tenants with requests
        self._requests: dict[str, int] = {}
        self._newcomers: set[str] = set()
        self._departed: OrderedDict[str, float] = OrderedDict()  # oldest departure first

    def enter(self, tenant: str) -> None:
        """Count one more request of the tenant."""
        self._requests[tenant] = self._requests.get(tenant, 0) + 1
        if tenant not in self._service:
            earned = self._departed.pop(tenant, 0.0)
            least = min(self._service.values(), default=0.0)
            self._service[tenant] = max(earned, least)
            if earned <= least:
                self._newcomers.add(tenant)

    def leave(self, tenant: str) -> None:
        """Count one request less."""
        self._requests[tenant] -= 1
        if self._requests[tenant]:
            return
        del self._requests[tenant]
        self._newcomers.discard(tenant)
        self._departed[tenant] = self._service.pop(tenant)
        if not self._service:
            self._departed.clear()  # none is left to be unfair to
        elif len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)

    def charge(self, tenant: str, seconds: float) -> None:
        """Add engine seconds to a tenant's counter. It must have requests."""
        self._service[tenant] += seconds
        self._newcomers.discard(tenant)

    def serve(self, tenant: str) -> None:
        """Count the tenant as served; what it costs is charged later."""
        self._newcomers.discard(tenant)

    def service(self, tenant: str) -> float:
        """Return engine seconds, comparable between tenants that have requests now."""
        return self._service[tenant]

    def is_newcomer(self, tenant: str) -> bool:
        return tenant in self._newcomers
