"""Who may come in now: places of the edge, limits of tenants and models, money of tokens.

    enter ──▶ Place ──▶ leave(what it used)

A request that would exceed a limit is refused at once, with the seconds after which to come back:
waiting is for places in an engine, not for allowances. It is let in by the most that it can use,
and what it did not use is given back. Nothing is kept of whom nothing limits; of the others,
`MAX_METERS` are remembered, who asked last the longest; whose requests run is not forgotten.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from skerry.errors import Overloaded, RateLimited, SkerryError, Unavailable
from skerry_edge.gate.auth import UNCAPPED, Caps
from skerry_edge.gate.quotas import Allowance, Quotas
from skerry_edge.gate.spending import Hold, Spending, dollars
from skerry_edge.gate.token_bucket import Bucket, Pace
from skerry_edge.limits import Limits
from skerry_regions.models.catalog import Price

MAX_METERS = 100_000
DEFAULT_LIMITS = Limits()
BUSY = "Capacity temporarily exceeded, please try again."
RATE_HEADERS = tuple(
    f"x-ratelimit-{part}-{unit}"
    for part in ("limit", "remaining", "reset")
    for unit in ("requests", "tokens")
)

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request may use at most, by which it is let in."""

    tenant: str
    token: str  # id of the API token
    caps: Caps = UNCAPPED  # of what the token may spend
    model: str  # catalog id
    price: Price
    prompt_tokens: int
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def dollars(self) -> float:
        """The most that it can cost."""
        dearest = replace(self.price, prompt=max(self.price.prompt, self.price.cached))
        return dollars(dearest, self.prompt_tokens, self.output_tokens)


class Meter:
    """How one allowance is used: of a tenant, of a tenant and a model, or of a model."""

    def __init__(self) -> None:
        self.running = 0
        self.pace = Pace()
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.concurrency: int | None = None

    def follow(self, allowance: Allowance, edges: int, now: float) -> None:
        """Hold to this allowance from now on, or to this edge's part of it."""
        self.requests = _bucket(self.requests, allowance.requests_per_minute, edges, now)
        self.tokens = _bucket(self.tokens, allowance.tokens_per_minute, edges, now)
        most = allowance.concurrency
        self.concurrency = None if most is None else max(1, most // edges)

    def refusal(self, tokens: int, now: float) -> tuple[str, float] | None:
        """What is exceeded, and seconds until it is not; None when there is room."""
        if self.concurrency is not None and self.running >= self.concurrency:
            return f"{self.concurrency} requests at once", self.pace.wait()
        for what, bucket, amount in (
            ("requests", self.requests, 1),
            ("tokens", self.tokens, tokens),
        ):
            if bucket is not None and (wait := bucket.wait(amount, now)):
                return f"{bucket.per_minute:.12g} {what} per minute", wait
        return None

    def enter(self, tokens: int, now: float) -> None:
        self.running += 1
        if self.requests is not None:
            self.requests.take(1, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)

    def leave(self, unused_tokens: int, now: float) -> None:
        self.running -= 1
        self.pace.freed(now)
        if self.tokens is not None:
            self.tokens.take(-unused_tokens, now)


class Place:
    """One admitted request. `leave` gives the place back."""

    def __init__(self, admission: Admission, demand: Demand, meters: list[Meter]) -> None:
        self.demand = demand
        self.meters = meters
        self.hold: Hold | None = None  # money set aside
        self._admission = admission
        self._on_end: Callable[[SkerryError], None] = lambda error: None
        self._ended_by: SkerryError | None = None
        self._has_left = False

    def leave(self, prompt_tokens: int = 0, output_tokens: int = 0, cached_tokens: int = 0) -> None:
        """The request is over and used so many tokens. Idempotent, synchronous, never fails."""
        if not self._has_left:
            self._has_left = True
            cost = dollars(self.demand.price, prompt_tokens, output_tokens, cached_tokens)
            self._admission.release(self, prompt_tokens + output_tokens, cost)

    def when_ended(self, act: Callable[[SkerryError], None]) -> None:
        """Call `act` when the platform ends the request; at once, if it has done so before."""
        self._on_end = act
        if self._ended_by is not None:
            act(self._ended_by)

    def end(self, error: SkerryError) -> None:
        """Have the request ended; its place is free when it has left."""
        self._ended_by = error
        self._on_end(error)


class Admission:
    """The places and allowances of one edge. Lives on one event loop.

    `edges` tells how many edges share the limits: each lets in its part, so that all of them keep
    to the whole without asking each other. Beyond `max_requests`, an eighth as many places are for
    tenants that have none, so that one tenant's flood shuts nobody out.
    """

    def __init__(
        self,
        *,
        max_requests: int = DEFAULT_LIMITS.max_requests,
        clock: Clock = time.monotonic,
        quotas: Quotas | None = None,
        edges: Callable[[], int] = lambda: 1,
        spending: Spending | None = None,
    ) -> None:
        """Without `spending` no token can have caps."""
        self.quotas = quotas or Quotas()
        self._spending = spending
        self._max_requests = max_requests
        self._for_newcomers = max(1, max_requests // 8)
        self._clock = clock
        self._edges = edges
        self._meters: OrderedDict[tuple[str, str], Meter] = OrderedDict()
        self._places: dict[str, set[Place]] = {}  # by tenant
        self._num_places = 0
        self._pace = Pace()

    @property
    def num_requests(self) -> int:
        """Those that are in."""
        return self._num_places

    @property
    def num_meters(self) -> int:
        return len(self._meters)

    def hold_to(self, quotas: Quotas) -> None:
        """Limits that take the place of those of before, for all who enter from now on."""
        self.quotas = quotas

    async def enter(
        self, demand: Demand, tell: Callable[[dict[str, str]], None] = lambda headers: None
    ) -> Place:
        """Take a place.

        Raises `Overloaded` when the edge or the model is full, `RateLimited` when the tenant asks
        too much, `QuotaExceeded` when the token's money is spent; all say when to come back.
        `tell` is given the headers that describe the tenant's limits, let in or not.
        """
        place = self._enter(demand, tell)
        if not demand.caps.is_unlimited:
            try:
                place.hold = await self._money().reserve(demand.token, demand.caps, demand.dollars)
            except BaseException:
                place.leave()
                raise
        return place

    def _money(self) -> Spending:
        if self._spending is None:
            raise Unavailable("This API token has a spending cap, and nobody counts here.")
        return self._spending

    def _enter(self, demand: Demand, tell: Callable[[dict[str, str]], None]) -> Place:
        now = self._clock()
        self._check_places(demand.tenant)
        kept = self._kept(demand, now)
        own = [meter for key, meter in kept if key[0]]
        try:
            for key, meter in kept:
                if (refusal := meter.refusal(demand.tokens, now)) is not None:
                    raise _refused(*key, *refusal)
            place = Place(self, demand, [meter for _, meter in kept])
            for _, meter in kept:
                meter.enter(demand.tokens, now)
        finally:
            if headers := rate_headers(own, now):
                tell(headers)
        self._num_places += 1
        self._places.setdefault(demand.tenant, set()).add(place)
        return place

    def release(self, place: Place, tokens: int, cost: float) -> None:
        """A place is free again, after so much use. Called by the place."""
        now = self._clock()
        if place.hold is not None:
            self._money().settle(place.hold, cost)
        for meter in place.meters:
            meter.leave(place.demand.tokens - tokens, now)
        self._num_places -= 1
        self._pace.freed(now)
        places = self._places[place.demand.tenant]
        places.discard(place)
        if not places:
            del self._places[place.demand.tenant]

    def end(self, is_over: Callable[[Demand], bool], error: SkerryError) -> int:
        """End the running requests that something is over for; how many."""
        ended = [each for each in chain(*self._places.values()) if is_over(each.demand)]
        for place in ended:
            place.end(error)
        return len(ended)

    def _check_places(self, tenant: str) -> None:
        extra = 0 if tenant in self._places else self._for_newcomers
        if self._num_places >= self._max_requests + extra:
            raise Overloaded(BUSY, retry_after=self._pace.wait())

    def _kept(self, demand: Demand, now: float) -> list[tuple[tuple[str, str], Meter]]:
        """The meters of what limits a request, up to date with the limits of now."""
        edges = max(1, self._edges())
        kept = []
        for key, allowance in self.quotas.of(demand.tenant, demand.model):
            if allowance.is_unlimited:
                continue
            meter = self._meters.setdefault(key, Meter())
            self._meters.move_to_end(key)
            meter.follow(allowance, edges, now)
            kept.append((key, meter))
        self._forget(len(kept))
        return kept

    def _forget(self, num_kept: int) -> None:
        """Forget idle meters beyond `MAX_METERS`, but not the newest `num_kept`.

        One in use is as good as asked for now: it goes to the end, not to be looked at each time.
        """
        for _ in range(len(self._meters) - num_kept):
            if len(self._meters) <= MAX_METERS:
                return
            key, meter = self._meters.popitem(last=False)
            if meter.running:
                self._meters[key] = meter


def rate_headers(meters: list[Meter], now: float) -> dict[str, str]:
    """OpenAI's `x-ratelimit-…` headers, each of the meter that has least left."""
    headers: dict[str, str] = {}
    for name, buckets in (
        ("requests", [meter.requests for meter in meters]),
        ("tokens", [meter.tokens for meter in meters]),
    ):
        kept = [bucket for bucket in buckets if bucket is not None]
        if kept:
            tightest = min(kept, key=lambda bucket: bucket.left(now))
            headers |= {
                f"x-ratelimit-limit-{name}": f"{math.floor(tightest.per_minute)}",
                f"x-ratelimit-remaining-{name}": f"{max(0, math.floor(tightest.left(now)))}",
                f"x-ratelimit-reset-{name}": f"{tightest.seconds_to_full(now):.3f}s",
            }
    return headers


def _bucket(
    bucket: Bucket | None, per_minute: float | None, edges: int, now: float
) -> Bucket | None:
    """A bucket of that rate's part: a new one, or the one there was at a new rate."""
    if per_minute is None:
        return None
    part = per_minute / edges
    if bucket is None:
        return Bucket(part, now)
    if bucket.per_minute != part:
        bucket.set_rate(part, now)
    return bucket


def _refused(tenant: str, model: str, limit: str, wait: float) -> SkerryError:
    """A tenant is told its limit; of what is everybody's, only that it is busy."""
    if not tenant:
        return Overloaded(BUSY, retry_after=wait)
    of = f" for {model}" if model else ""
    message = f"Rate limit reached: this account may ask {limit}{of}. Try again in {wait:.3g} s."
    return RateLimited(message, retry_after=wait)
