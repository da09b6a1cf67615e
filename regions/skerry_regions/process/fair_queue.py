"""Blocking work of many tenants on few threads, so that none of them waits for another's pile.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): what waits is tagged with the seconds that
its tenant's work has taken, and the smallest tag goes next. A tenant that comes after a pause
starts where the others are, so that idleness saves up nothing.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skerry.errors import Overloaded, RateLimited
from skerry_regions.process.confined import Exhausted

MAX_TENANT_WAITING = 256
MAX_WAITING = 2048  # of all tenants
RETRY_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 1.0  # of a tenant whose work had to be ended; each further one doubles it
LONGEST_PAUSE_SECONDS = 60.0

T = TypeVar("T")


@dataclass(slots=True)
class _Tenant:
    """One tenant's waiting work, and what its work has cost."""

    seconds: float  # of virtual time: where its next work starts
    waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = field(default_factory=deque)
    running: int = 0
    offences: int = 0  # works in a row that had to be ended
    paused_until: float = 0.0  # on the clock

    def is_forgotten(self, now: float) -> bool:
        """Return whether nothing of it needs to be remembered."""
        pardoned = not self.offences or self.paused_until + LONGEST_PAUSE_SECONDS < now
        return pardoned and not self.waiting and not self.running


class FairQueue:
    """Runs work on threads, tenants by turn. Belongs to the event loop that first uses it."""

    def __init__(
        self,
        name: str,
        *,
        threads: int = 1,
        max_tenant_waiting: int = MAX_TENANT_WAITING,
        max_waiting: int = MAX_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is that of the threads; `clock` gives seconds."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._idle_threads = threads
        self._max_tenant_waiting = max_tenant_waiting
        self._max_waiting = max_waiting
        self._clock = clock
        self._tenants: dict[Hashable, _Tenant] = {}
        self._num_waiting = 0
        self._now = 0.0  # virtual: the start of the work that began last

    async def run(self, tenant: Hashable, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, on a thread when it is its turn.

        Raises `Overloaded` when too much waits, and `RateLimited` for a tenant whose work was ended
        (`Exhausted`) of late: each time it pauses twice as long.
        """
        waiter = self._tenants.get(tenant)
        if waiter is None:
            waiter = self._tenants[tenant] = _Tenant(self._now)
        if (left := waiter.paused_until - self._clock()) > 0:
            raise _paused(left)
        is_full = self._num_waiting >= self._max_waiting
        if is_full or len(waiter.waiting) >= self._max_tenant_waiting:
            message = "Too many requests of this kind wait already."
            raise Overloaded(message, retry_after=RETRY_SECONDS)
        if not waiter.waiting and not waiter.running:
            waiter.seconds = max(waiter.seconds, self._now)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiter.waiting.append((work, done))
        self._num_waiting += 1
        self._begin_next()
        try:
            return await done
        finally:
            del done  # its error refers to this frame by its traceback

    def close(self) -> None:
        """Cancel what waits, and wait for what runs. Blocks."""
        for tenant in self._tenants.values():
            for _, done in tenant.waiting:
                done.cancel()
            tenant.waiting.clear()
        self._executor.shutdown(cancel_futures=True)

    def _begin_next(self) -> None:
        while self._idle_threads and (next_ := self._next()) is not None:
            name, tenant = next_
            work, done = tenant.waiting.popleft()
            self._num_waiting -= 1
            if done.done():  # whoever wanted it is gone
                continue
            self._now = tenant.seconds
            self._idle_threads -= 1
            tenant.running += 1
            running = asyncio.get_running_loop().run_in_executor(self._executor, work)
            begun = self._clock()
            running.add_done_callback(functools.partial(self._ended, name, done, begun))

    def _next(self) -> tuple[Hashable, _Tenant] | None:
        """Return whose turn it is: of those that wait, the one that has and took least."""
        waiting = (each for each in self._tenants.items() if each[1].waiting)
        return min(waiting, key=lambda each: (each[1].running, each[1].seconds), default=None)

    def _ended(
        self, name: Hashable, done: asyncio.Future[T], begun: float, ended: asyncio.Future[T]
    ) -> None:
        now = self._clock()
        tenant = self._tenants[name]
        tenant.running -= 1
        tenant.seconds += now - begun
        self._idle_threads += 1
        error = None if ended.cancelled() else ended.exception()
        if isinstance(error, Exhausted):
            self._pause(tenant, now)
        elif tenant.paused_until <= now:
            tenant.offences = max(0, tenant.offences - 1)
        if done.done():
            pass
        elif ended.cancelled():
            done.cancel()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(ended.result())
        self._begin_next()
        self._forget(now)

    def _pause(self, tenant: _Tenant, now: float) -> None:
        """Take nothing of a tenant for a while, and give up what it has waiting."""
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**tenant.offences)
        tenant.paused_until = now + pause
        tenant.offences = min(tenant.offences + 1, 16)
        for _, done in tenant.waiting:
            if not done.done():
                done.set_exception(_paused(pause))
        self._num_waiting -= len(tenant.waiting)
        tenant.waiting.clear()

    def _forget(self, now: float) -> None:
        """Forget tenants that would start where everybody else is."""
        for name, tenant in list(self._tenants.items()):
            if tenant.seconds <= self._now and tenant.is_forgotten(now):
                del self._tenants[name]


def _paused(seconds: float) -> RateLimited:
    return RateLimited(
        "What this account sent took too much time or memory to prepare; try again in "
        f"{seconds:.3g} s, with something simpler.",
        retry_after=seconds,
    )
