"""Admission of requests: places of the edge, limits of tenants and models, money of tokens.

    arrive ──▶ enter ──▶ Place ──▶ leave(what it used)

A request counts when it arrives, before any work on it, and however it ends: one that is refused
for what it holds has cost as much until then. One that would exceed a limit is refused at once,
with the seconds after which to come back: waiting is for places in an engine, not for allowances.
It is let in by the most that it can use, each of its choices as a request of its own where those
that run are counted, and what it did not use is given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

from skerry.errors import InvalidInput, Overloaded, RateLimited, SkerryError, Unavailable
from skerry_edge.gate.allowance_use import AllowanceUse, rate_headers
from skerry_edge.gate.meters import Key, Meters, Rates
from skerry_edge.gate.quotas import Quotas
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.gate.token_bucket import Pace
from skerry_edge.limits import Limits
from skerry_edge.money.spending import UNWRITTEN, Hold, Spending, Written, dollars
from skerry_edge.telemetry import tracing

DEFAULT_LIMITS = Limits()
BUSY = "Capacity temporarily exceeded, please try again."

Clock = Callable[[], float]  # seconds, monotonic


class Place:
    """One admitted request. `leave` gives the place back."""

    def __init__(
        self,
        admission: Admission,
        demand: RequestDemand,
        uses: list[AllowanceUse],
        on_end: Callable[[SkerryError], None],
    ) -> None:
        self.demand = demand
        self.uses = uses
        self.hold: Hold | None = None  # money set aside
        self._admission = admission
        self._on_end = on_end
        self._ended_by: SkerryError | None = None
        self._has_left = False

    def leave(
        self,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        written: Written = UNWRITTEN,
    ) -> None:
        """Give the place back after so much use. Idempotent, synchronous, never fails."""
        if self._has_left:
            return
        self._has_left = True
        self._admission.release(self, prompt_tokens + output_tokens)
        if self.hold is not None:
            price = self.demand.price
            cost = dollars(price, prompt_tokens, output_tokens, cached_tokens, written)
            self._admission.settle(self.hold, cost)

    def end(self, error: SkerryError) -> None:
        """Have the request ended; its place is free when it has left."""
        self._ended_by = error
        self._on_end(error)

    def check(self) -> None:
        """Raise the error that the platform ended the request with, if it has."""
        if self._ended_by is not None:
            raise self._ended_by


class Admission:
    """The places and allowances of one edge. Lives on one event loop.

    `edges` returns how many edges share the limits, and `rates` is how they do. Beyond
    `max_requests`, an eighth as many places are for tenants that have none, so that one tenant's
    flood shuts no other out.
    """

    def __init__(
        self,
        *,
        max_requests: int = DEFAULT_LIMITS.max_requests,
        clock: Clock = time.monotonic,
        quotas: Quotas | None = None,
        edges: Callable[[], int] = lambda: 1,
        spending: Spending | None = None,
        unwritten: Callable[[], float] = lambda: 0.0,
        rates: Rates | None = None,
    ) -> None:
        """Without `spending` nothing can have caps; `unwritten` returns for how many seconds the
        usage journal could not be written."""
        self._unwritten = unwritten
        self.quotas = quotas or Quotas()
        self._is_limited = self.quotas.limits_anything
        self.spending = spending
        self._max_requests = max_requests
        self._for_newcomers = max(1, max_requests // 8)
        self._clock = clock
        self._edges = edges
        self.meters = Meters(rates, edges)
        self._places: dict[str, set[Place]] = {}  # by tenant
        self.num_requests = 0  # that are in, one of several choices as so many
        self._pace = Pace()

    def part(self, most: int) -> int:
        """Return how many of `most` at once this edge lets in."""
        return max(1, most // max(1, self._edges()))

    def hold_to(self, quotas: Quotas) -> None:
        """Apply these limits in place of those of before, to all who enter from now on."""
        self.quotas, self._is_limited = quotas, quotas.limits_anything

    async def prepare(self, tenant: str, model: str = "") -> None:
        """Wait, for a moment at most, until this edge has its part of what limits a request."""
        if self._is_limited:
            await self.meters.ready(self.quotas.of(tenant, model), self._clock())

    def arrive(
        self, tenant: str, model: str = "", tell: Callable[[dict[str, str]], None] = lambda _: None
    ) -> None:
        """Count a request: for its tenant, or with a `model` (catalog id), once it is known, for
        that. `tell` is as in `enter`.

        Raises `RateLimited` when the tenant calls too often, `Overloaded` when all together do.
        """
        if not self._is_limited:
            return
        now = self._clock()
        kept = [each for each in self._kept(tenant, model, now) if bool(each[0][1]) == bool(model)]
        try:
            for key, use in kept:
                if (refusal := use.refusal_on_arrival(now)) is not None:
                    raise _refused(*key, *refusal)
            for _, use in kept:
                use.arrive(now)
        finally:
            if headers := rate_headers([use for key, use in kept if key[0]], now):
                tell(headers)

    async def enter(
        self,
        demand: RequestDemand,
        tell: Callable[[dict[str, str]], None] = lambda headers: None,
        on_end: Callable[[SkerryError], None] = lambda error: None,
    ) -> Place:
        """Take a place for a request that has arrived.

        Raises `Overloaded` when the edge or the model is full, `RateLimited` when the tenant sends
        too much, `QuotaExceeded` when the token's money is spent; all say when to come back.
        Raises `InvalidInput` for more choices than may ever run at once.
        `tell` is called with the headers that describe the tenant's limits, also where it refuses;
        `on_end` when the platform ends the request.
        """
        self._check_places(demand)
        uses = self._counted(demand, tell) if self._is_limited else []
        place = Place(self, demand, uses, on_end)
        self.num_requests += demand.choices
        self._places.setdefault(demand.caller.tenant, set()).add(place)
        own = self.quotas.budget(demand.caller.tenant) if self._is_limited else None
        budgets = demand.caller.budgets if own is None else (*demand.caller.budgets, own)
        if budgets:
            try:
                self._check_journal()
                place.hold = await self._money().reserve(budgets, demand.dollars)
            except BaseException:
                place.leave()
                raise
        if (trace := tracing.current()) is not None:
            trace.is_admitted = True
        return place

    def _check_journal(self) -> None:
        """Raise Unavailable for a capped caller whose usage would be lost with this process."""
        if self._unwritten() > self.quotas.unwritten_seconds:
            raise Unavailable(
                "What is spent cannot be written down now, and there is a spending cap.",
                retry_after=2.0,
            )

    def _money(self) -> Spending:
        if self.spending is None:
            raise Unavailable("There is a spending cap, and this edge counts no money.")
        return self.spending

    def _counted(
        self, demand: RequestDemand, tell: Callable[[dict[str, str]], None]
    ) -> list[AllowanceUse]:
        """Count a request against what limits it, from now on. Raises as `enter`."""
        now = self._clock()
        kept = self._kept(demand.caller.tenant, demand.model, now)
        own = [use for key, use in kept if key[0]]
        try:
            for key, use in kept:
                _check_choices(demand, use.concurrency)
                if (refusal := use.refusal(demand.tokens, demand.choices, now)) is not None:
                    raise _refused(*key, *refusal)
            for _, use in kept:
                use.enter(demand.tokens, demand.choices, now)
        finally:
            if headers := rate_headers(own, now):
                tell(headers)
        return [use for _, use in kept]

    def release(self, place: Place, tokens: int) -> None:
        """Free a place, after so much use. Called by the place."""
        now = self._clock()
        for use in place.uses:
            use.leave(place.demand.tokens - tokens, place.demand.choices, now)
        self.num_requests -= place.demand.choices
        self._pace.append(now)
        places = self._places[place.demand.caller.tenant]
        places.discard(place)
        if not places:
            del self._places[place.demand.caller.tenant]

    def settle(self, hold: Hold, cost: float) -> None:
        """Replace a reservation by what the request cost, in US$. Called by the place."""
        self._money().settle(hold, cost)

    def end(self, is_over: Callable[[RequestDemand], bool], error: SkerryError) -> int:
        """End the running requests that something is over for; returns how many."""
        ended = [each for each in chain(*self._places.values()) if is_over(each.demand)]
        for place in ended:
            place.end(error)
        return len(ended)

    def _check_places(self, demand: RequestDemand) -> None:
        _check_choices(demand, self._max_requests)
        extra = 0 if demand.caller.tenant in self._places else self._for_newcomers
        if self.num_requests + demand.choices > self._max_requests + extra:
            raise Overloaded(BUSY, retry_after=self._pace.wait())

    def _kept(self, tenant: str, model: str, now: float) -> list[tuple[Key, AllowanceUse]]:
        return self.meters.kept(self.quotas.of(tenant, model), now)


def _check_choices(demand: RequestDemand, most: int | None) -> None:
    """Refuse what can never run at once, however long its caller waits."""
    if most is not None and demand.choices > most:
        raise InvalidInput(
            f"Bad input: n: {demand.choices} choices are more than the {most} that may run at once",
            param="n",
        )


def _refused(tenant: str, model: str, limit: str, wait: float) -> SkerryError:
    """Return the tenant's error: its own limit; of what all share, only that it is busy."""
    if not tenant:
        return Overloaded(BUSY, retry_after=wait)
    of = f" for {model}" if model else ""
    message = f"Rate limit reached: this account may ask {limit}{of}. Try again in {wait:.3g} s."
    return RateLimited(message, retry_after=wait)
