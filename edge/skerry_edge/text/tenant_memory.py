"""What was made of tenants' texts, kept so that it need not be made again. No I/O.

Each tenant has its own: how long a request takes reveals nothing of what others sent. Of a tenant
that has too much, and of all tenants together, what was used the longest ago goes first.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Generic, TypeVar

ENTRY_BYTES = 200  # what an entry takes besides what is kept

T = TypeVar("T")


class TenantMemory(Generic[T]):
    """Values by tenant and name. Any thread may use it."""

    def __init__(self, *, max_bytes: int, max_tenant_bytes: int) -> None:
        """All tenants have at most `max_bytes`, each `max_tenant_bytes`."""
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._lock = threading.Lock()
        # Of each tenant values and their sizes by name; what was used last is last, tenants too.
        self._tenants: OrderedDict[str, OrderedDict[bytes, tuple[T, int]]] = OrderedDict()
        self._held: Counter[str] = Counter()  # bytes by tenant
        self.num_bytes = 0  # of all tenants

    def recall(self, tenant: str, name: bytes) -> T | None:
        """Return what a tenant's name stands for, if it is still there."""
        with self._lock:
            entries = self._tenants.get(tenant)
            if entries is None:
                return None
            self._tenants.move_to_end(tenant)
            if name not in entries:
                return None
            entries.move_to_end(name)
            return entries[name][0]

    def remember(self, tenant: str, name: bytes, value: T, size: int) -> None:
        """Keep a value that takes `size` bytes; none when another thread was faster."""
        with self._lock:
            entries = self._tenants.setdefault(tenant, OrderedDict())
            if name in entries:
                return
            entries[name] = value, size + ENTRY_BYTES
            self._count(tenant, size + ENTRY_BYTES)
            while self._held[tenant] > self._max_tenant_bytes:
                self._forget_oldest(tenant)
            while self.num_bytes > self._max_bytes:
                self._forget_oldest(next(iter(self._tenants)))

    def _count(self, tenant: str, size: int) -> None:
        self._held[tenant] += size
        self.num_bytes += size

    def _forget_oldest(self, tenant: str) -> None:
        """Forget the oldest of a tenant's values; a tenant without any is forgotten as well."""
        entries = self._tenants[tenant]
        _, (_, size) = entries.popitem(last=False)
        self._count(tenant, -size)
        if not entries:
            del self._tenants[tenant], self._held[tenant]
