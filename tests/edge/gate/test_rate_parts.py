"""Parts of a limit among edges, by a store in memory: the whole is never exceeded."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from skerry_edge.gate.quotas import Allowance
from skerry_edge.shared.rate_parts import (
    DEAD_SECONDS,
    PLACES,
    PLACES_DEAD_SECONDS,
    RATES,
    WHOLE,
    EdgeShare,
    RateRecord,
)
from skerry_edge.shared.rate_use import RateUse

STEP = 0.05  # seconds


class OneBucket:
    """The single bucket that all edges together are to keep to."""

    def __init__(self, per_minute: float) -> None:
        self.per_minute = self.level = self.lowest = per_minute
        self.at = 0.0
        self.taken = 0.0

    def take(self, amount: float, now: float) -> None:
        gained = (now - self.at) * self.per_minute / 60
        self.level = min(self.per_minute, self.level + gained) - amount
        self.at, self.lowest = now, min(self.lowest, self.level)
        self.taken += amount


@dataclass
class Store:
    """One record, changed by compare-and-set, which edges hear of late."""

    record: RateRecord = field(default_factory=RateRecord)
    revision: int = 0
    num_writes: int = 0
    places: int = 0  # of the limit

    def write(self, record: RateRecord, expected: int) -> bool:
        if expected != self.revision:
            return False
        for kind in RATES:
            held = sum(each.parts[kind] for each in record.edges.values())
            assert held <= WHOLE
            assert record.levels[kind] <= WHOLE - held
        if self.places:
            assert sum(each.parts[PLACES] for each in record.edges.values()) <= self.places
        self.record, self.revision = record, self.revision + 1
        self.num_writes += 1
        return True


@dataclass
class Edge:
    store: Store
    use: RateUse
    pending: tuple[RateRecord, int] | None = None  # a write of which the outcome is not known
    running: list[float] = field(default_factory=list)  # when each request ends

    def move(self, now: float, unheard: dict[str, float], chance: random.Random) -> None:
        """Do one thing, as its keeper would; a write may be lost, or its answer."""
        share = self.use.share
        if self.pending is None:
            self.use.look(now)
            planned = share.plan(self.use.want(now), unheard)
            if planned is None:
                return
            self.use.settle(planned[1], -1, now)
            self.pending = planned[0], share.revision
        if (fate := chance.random()) < 0.1:
            return  # it did not arrive
        is_stored = self.store.write(*self.pending)
        if fate < 0.2:
            return  # its answer did not
        self.pending = None
        if is_stored:
            self.use.settle(share.stored(self.store.revision), 1, now)
        else:
            self.use.settle(share.found(self.store.record, self.store.revision), 1, now)

    def see(self, now: float) -> None:
        self.use.share.seen(self.store.record, self.store.revision)
        self.use.settle((0, 0), 1, now)


def edges_of(store: Store, number: int, allowance: Allowance, now: float = 0.0) -> list[Edge]:
    made = []
    for index in range(number):
        use = RateUse(EdgeShare(f"e{index}"), lambda: None)
        use.follow(allowance, number, now)
        use.share.found(store.record, store.revision)
        use.known(now)
        made.append(Edge(store, use))
    return made


@pytest.mark.parametrize("seed", range(6))
def test_a_rate_is_kept_as_by_one_bucket_and_used(seed: int) -> None:
    """Demand moves from edge to edge; writes and their answers are lost; news come late."""
    chance, rate, seconds = random.Random(seed), 60_000.0, 120.0
    store, bucket = Store(), OneBucket(rate)
    edges = edges_of(store, 3, Allowance(tokens_per_minute=rate))
    now, asked = 0.0, 0.0
    while now < seconds:
        busy = int(3 * now / seconds)
        for index, edge in enumerate(edges):
            pace = 3 * rate if index == busy else 0.05 * rate  # a minute
            for _ in range(poisson(chance, pace / 275 * STEP / 60)):
                amount = chance.randint(50, 500)
                asked += amount
                if edge.use.refusal(amount, 1, now) is None:
                    edge.use.enter(amount, 1, now)
                    edge.use.leave(0, 1, now)
                    bucket.take(amount, now)
            if chance.random() < 0.5:
                edge.move(now, {}, chance)
            if chance.random() < 0.3:
                edge.see(now)
        now += STEP
    assert bucket.lowest >= -0.001 * rate / 60  # what rounding to millionths may be
    assert bucket.taken >= 0.7 * min(asked, rate * (1 + seconds / 60))
    assert store.num_writes < 2 * 3 * seconds


@pytest.mark.parametrize("seed", range(4))
def test_places_are_whole_numbers_and_never_more_than_there_are(seed: int) -> None:
    chance, places = random.Random(seed), 5
    store = Store(places=places)
    edges = edges_of(store, 3, Allowance(concurrency=places))
    now, most, entered = 0.0, 0, [0, 0, 0]
    while now < 60:
        for index, edge in enumerate(edges):
            for end in [each for each in edge.running if each <= now]:
                edge.running.remove(end)
                edge.use.leave(0, 1, now)
            has_one = chance.random() < (0.5 if index == int(now / 20) else 0.05)
            if has_one and edge.use.refusal(10, 1, now) is None:
                edge.use.enter(10, 1, now)
                edge.running.append(now + chance.expovariate(1))
                entered[index] += 1
            if chance.random() < 0.5:
                edge.move(now, {}, chance)
            if chance.random() < 0.5:
                edge.see(now)
        running = sum(each.use.running for each in edges)
        assert running <= places
        most = max(most, running)
        now += STEP
    assert most == places
    assert min(entered) > 20


def test_the_part_of_an_edge_that_is_silent_for_a_minute_goes_to_others() -> None:
    chance = random.Random(1)
    chance.random = lambda: 1.0  # type: ignore[method-assign]  # nothing is lost
    store = Store(places=4)
    allowance = Allowance(requests_per_minute=60, concurrency=4)
    dead, other = edges_of(store, 2, allowance)
    dead.use.enter(0, 3, 0.0)
    dead.move(0.0, {}, chance)
    assert dead.use.share.parts == (WHOLE, 0, 4)
    other.see(0.0)
    for silent, parts in (
        (DEAD_SECONDS - 1, (0, 0, 0)), (DEAD_SECONDS, (WHOLE, 0, 0)),
        (PLACES_DEAD_SECONDS, (WHOLE, 0, 4)),
    ):  # fmt: skip
        for _ in range(3):
            other.move(silent, {"e0": silent}, chance)
        assert other.use.share.parts == parts
    dead.see(700.0)
    assert dead.use.share.parts == (0, 0, 0), "it learns that it was taken for dead"


def test_a_limit_that_was_lowered_holds_at_once_at_all_edges() -> None:
    chance = random.Random(1)
    chance.random = lambda: 1.0  # type: ignore[method-assign]
    store = Store(places=9)
    edges = edges_of(store, 3, Allowance(requests_per_minute=900, concurrency=9))
    for _ in range(20):
        for edge in edges:
            edge.use.refusal_on_arrival(0.0)
            edge.use.refusal(0, 3, 0.0)
            edge.move(0.0, {}, chance)
            for each in edges:
                each.see(0.0)
    assert sorted(each.use.concurrency or 0 for each in edges) == [3, 3, 3]
    store.places = 9  # of before: the record follows in a moment
    lower = Allowance(requests_per_minute=90, concurrency=3)
    for edge in edges:
        edge.use.follow(lower, 3, 0.0)
    assert sum(each.use.concurrency or 0 for each in edges) <= 3
    assert sum(each.use.requests.per_minute for each in edges if each.use.requests) <= 90
    assert sum(each.use.requests.left(0.0) for each in edges if each.use.requests) <= 90


def poisson(chance: random.Random, mean: float) -> int:
    """Knuth's."""
    number, left = 0, chance.expovariate(1)
    while left < mean:
        number += 1
        left += chance.expovariate(1)
    return number
