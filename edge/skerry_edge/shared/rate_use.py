"""The use of one limit at one edge that has a part of it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from skerry_edge.gate.allowance_use import AllowanceUse
from skerry_edge.gate.quotas import UNLIMITED, Allowance
from skerry_edge.gate.token_bucket import ROUNDING, WINDOW_SECONDS, Bucket
from skerry_edge.shared.rate_parts import PLACES, RATES, REQUESTS, TOKENS, WHOLE, EdgeShare, Want

LEAST_REQUESTS = 4  # of the largest size, that a part should have room for
FIRST = 1 / 8  # of the whole, that it should have room for until requests are known
LOW = 0.25  # of a part's bucket; with less left the edge lacks it
WEIGHT = 0.5  # of the newest look at the demand
LOOK_SECONDS = 0.5
MAX_DEMAND = 1000 * WHOLE


class PartBucket(Bucket):
    """The bucket of a part; it begins empty, and without a part.

    More than the part holds is for an edge with a larger one. More than the whole holds may be
    taken of a full part, and leaves it in debt.
    """

    __slots__ = ("whole",)

    def __init__(self, whole: float, now: float) -> None:
        super().__init__(0.0, now)
        self.whole = whole

    @property
    def limit(self) -> float:
        return self.whole

    def wait(self, amount: float, now: float) -> float:
        enough = amount if amount <= self.whole else self.per_minute
        lacking = enough - self.left(now)
        if self.per_minute and lacking <= self.whole * ROUNDING:
            return 0.0
        return max(lacking, 0.0) * WINDOW_SECONDS / (self.per_minute or self.whole) or 1.0

    def seconds_to_full(self, now: float) -> float:
        return super().seconds_to_full(now) if self.per_minute else 0.0

    def change(self, per_minute: float, level: float, now: float) -> None:
        """Go on at another rate, with so much more or less in it."""
        self._level = min(per_minute, self.left(now) + level)
        self._at, self.per_minute = now, per_minute


class RateUse(AllowanceUse):
    """See `AllowanceUse`. Until the parts of all edges are known, the edge has an equal one."""

    def __init__(self, share: EdgeShare, stir: Callable[[], None]) -> None:
        """`stir` is called when the edge lacks what others may have."""
        super().__init__()
        self.share = share
        self.used_at = 0.0
        self._stir = stir
        self.is_known = False
        """Whether it has parts of what all edges share."""
        self._allowance: Allowance = UNLIMITED
        self._asked = [0.0, 0.0]  # since the last look
        self._pace = [0.0, 0.0]  # a minute
        self._largest = [1.0, 0.0]
        self._most_running = 0
        self._refused = [False, False, False]
        self._looked_at = -float("inf")

    @property
    def has_parts(self) -> bool:
        """Return whether it has something of all that is limited."""
        parts = zip(self.share.parts, self._wholes(), strict=True)
        return self.is_known and all(part or not whole for part, whole in parts)

    def follow(self, allowance: Allowance, edges: int, now: float) -> None:
        self._allowance, self.used_at = allowance, now
        if not self.is_known:
            super().follow(allowance, edges, now)
            return
        self.requests = self._bucket(self.requests, allowance.requests_per_minute, REQUESTS, now)
        self.tokens = self._bucket(self.tokens, allowance.tokens_per_minute, TOKENS, now)
        most = allowance.concurrency
        self.concurrency = None if most is None else self.share.places(most)

    def refusal(self, tokens: int, choices: int, now: float) -> tuple[str, float] | None:
        self._asked[TOKENS] += tokens
        self._largest[TOKENS] = max(self._largest[TOKENS], tokens)
        self._most_running = max(self._most_running, self.running + choices)
        is_full = self.concurrency is not None and self.running + choices > self.concurrency
        return self._noted(super().refusal(tokens, choices, now), PLACES if is_full else TOKENS)

    def refusal_on_arrival(self, now: float) -> tuple[str, float] | None:
        self._asked[REQUESTS] += 1
        return self._noted(super().refusal_on_arrival(now), REQUESTS)

    def leave(self, unused_tokens: int, choices: int, now: float) -> None:
        self._asked[TOKENS] -= unused_tokens
        super().leave(unused_tokens, choices, now)

    def _noted(self, refusal: tuple[str, float] | None, kind: int) -> tuple[str, float] | None:
        if refusal is not None and not self._refused[kind]:
            self._refused[kind] = True
            self._stir()
        return refusal

    # --- what its keeper asks ---------------------------------------------------------------------

    def known(self, now: float) -> None:
        """Go by the parts of all edges from now on."""
        if not self.is_known:
            self.is_known, self.requests, self.tokens = True, None, None
            self.follow(self._allowance, 1, now)

    def unknown(self) -> None:
        """Go by an equal part until they are known again."""
        self.is_known, self.requests, self.tokens = False, None, None

    def settle(self, levels: tuple[int, int], sign: int, now: float) -> None:
        """Have the buckets be as the parts are now, with so much more in them, or less."""
        for kind, bucket in zip(RATES, (self.requests, self.tokens), strict=True):
            if isinstance(bucket, PartBucket):
                part = bucket.whole * self.share.parts[kind] / WHOLE
                bucket.change(part, sign * bucket.whole * levels[kind] / WHOLE, now)
        if self.is_known and self._allowance.concurrency is not None:
            self.concurrency = self.share.places(self._allowance.concurrency)

    def look(self, now: float) -> bool:
        """Look at the demand, and return whether something is lacking."""
        if (elapsed := now - self._looked_at) >= LOOK_SECONDS:
            for kind in RATES:
                pace = max(0.0, self._asked[kind]) * WINDOW_SECONDS / elapsed
                self._pace[kind] += WEIGHT * (pace - self._pace[kind])
            self._asked, self._looked_at = [0.0, 0.0], now
            self._refused = [False, False, False]
            self._most_running = self.running
        return any(self.want(now).lacks)

    def want(self, now: float, *, gives_all: bool = False) -> Want:
        """Return what this edge has use for."""
        demand, lacks, levels = [0, 0, 0], [False, False, False], [0, 0]
        wholes = self._wholes()
        for kind, bucket in zip(RATES, (self.requests, self.tokens), strict=True):
            if isinstance(bucket, PartBucket):
                left = bucket.left(now)
                largest = self._largest[kind] or bucket.whole * FIRST / LEAST_REQUESTS
                needed = max(self._pace[kind], LEAST_REQUESTS * largest)
                demand[kind] = min(MAX_DEMAND, int(needed / bucket.whole * WHOLE))
                levels[kind] = max(0, int(left / bucket.whole * WHOLE))
                is_low = left < LOW * bucket.per_minute and self._pace[kind] > bucket.per_minute
                lacks[kind] = self._refused[kind] or is_low or not self.share.parts[kind]
        if wholes[PLACES]:
            running = max(self.running, self._most_running)
            demand[PLACES] = running + 1
            lacks[PLACES] = self._refused[PLACES] or running >= self.share.parts[PLACES]
        return Want(
            wholes=wholes,
            demand=(demand[REQUESTS], demand[TOKENS], demand[PLACES]),
            lacks=(lacks[REQUESTS], lacks[TOKENS], lacks[PLACES]),
            levels=(levels[REQUESTS], levels[TOKENS]),
            running=self.running,
            gives_all=gives_all,
        )

    def _wholes(self) -> tuple[int, int, int]:
        limits = self._allowance
        return (
            0 if limits.requests_per_minute is None else WHOLE,
            0 if limits.tokens_per_minute is None else WHOLE,
            limits.concurrency or 0,
        )

    def _bucket(
        self, bucket: Bucket | None, whole: float | None, kind: int, now: float
    ) -> Bucket | None:
        """Return the bucket of its part of a rate: a new one, or the one there was at a new
        rate."""
        if whole is None:
            return None
        if not isinstance(bucket, PartBucket):
            bucket = PartBucket(whole, now)
        elif bucket.whole != whole:
            bucket.whole = whole
        else:
            return bucket
        bucket.change(whole * self.share.parts[kind] / WHOLE, 0.0, now)
        return bucket
