"""What was made of tenants' texts, kept so that it need not be made again. No I/O.

Each tenant has its own: how long a request takes reveals nothing of what others sent. Of a tenant
that has too much, and of all tenants together, what was used the longest ago goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
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
        # The tenant that called last, last.
        self._tenants: OrderedDict[str, _Entries[T]] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def recall(self, tenant: str, name: bytes) -> T | None:
        """Return what a tenant's name stands for, if it is still there."""
        with self._lock:
            entries = self._tenants.get(tenant)
            if entries is None:
                return None
            self._tenants.move_to_end(tenant)
            return entries.recall(name)

    def remember(self, tenant: str, name: bytes, value: T, size: int) -> None:
        """Keep a value that takes `size` bytes; none when another thread was faster."""
        with self._lock:
            entries = self._tenants.setdefault(tenant, _Entries[T]())
            self._num_bytes += entries.remember(name, value, size + ENTRY_BYTES)
            while entries.num_bytes > self._max_tenant_bytes:
                self._forget_oldest(tenant)
            while self._num_bytes > self._max_bytes:
                self._forget_oldest(next(iter(self._tenants)))

    def _forget_oldest(self, tenant: str) -> None:
        """Forget the oldest of a tenant's values; a tenant without any is forgotten as well."""
        entries = self._tenants[tenant]
        self._num_bytes -= entries.forget_oldest()
        if not entries.num_bytes:
            del self._tenants[tenant]


class _Entries(Generic[T]):
    """One tenant's values and their sizes by name, the most recently used last."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._known: OrderedDict[bytes, tuple[T, int]] = OrderedDict()

    def recall(self, name: bytes) -> T | None:
        found = self._known.get(name)
        if found is None:
            return None
        self._known.move_to_end(name)
        return found[0]

    def remember(self, name: bytes, value: T, size: int) -> int:
        """Return bytes that it takes; none when the name is known."""
        if name in self._known:
            return 0
        self._known[name] = value, size
        self.num_bytes += size
        return size

    def forget_oldest(self) -> int:
        """Return bytes that it gives back."""
        _, (_, size) = self._known.popitem(last=False)
        self.num_bytes -= size
        return size
