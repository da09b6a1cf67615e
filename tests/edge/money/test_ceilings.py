"""Shares of a cap: whatever edges do, and whatever becomes of their writes, a cap holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from skerry_edge.money.cap_record import MAX_LIVES, CapRecord
from skerry_edge.money.ceilings import RESTORE_SECONDS, Giving, Lease

DAY, MONTH = "2026-11-21", "2026-11"
PERIODS = (DAY, MONTH)


@dataclass
class Store:
    """A record that is changed by compare-and-set, and may lose answers."""

    record: CapRecord = field(default_factory=CapRecord)
    revision: int = 0

    def write(self, record: CapRecord, expected: int) -> bool:
        if expected != self.revision:
            return False
        self.record, self.revision = record, self.revision + 1
        return True


@dataclass
class Edge:
    """A lease, and a write of it whose outcome it does not know."""

    lease: Lease
    store: Store
    pending: tuple[CapRecord, int] | None = None
    paid: int = 0
    now: float = 0.0

    def change(self, need: int, giving: Giving = "nothing", *, arrives: bool = True,
               answers: bool = True) -> None:  # fmt: skip
        self.now += 1.0
        if self.pending is None:
            planned = self.lease.plan(
                PERIODS, need, self.now, least=min(need, 50), giving=giving, edges=3
            )
            if planned is None:
                return
            self.pending = planned, self.lease.revision
        is_stored = arrives and self.store.write(*self.pending)
        if not (arrives and answers):
            return
        self.pending = None
        if is_stored:
            self.lease.stored(self.store.revision)
        elif not self.lease.found(self.store.record, self.store.revision):
            self.change(need, giving)

    def pay(self, amount: int) -> bool:
        if not self.lease.spend(amount, PERIODS):
            return False
        self.paid += amount
        return True


def edges(cap: int, number: int = 3, month: int | None = None) -> tuple[Store, list[Edge]]:
    store = Store()
    caps = {"day": cap} | ({} if month is None else {"month": month})
    return store, [Edge(Lease(f"life-{i}", caps), store) for i in range(number)]  # type: ignore[arg-type]


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["pay", "change", "surplus", "all", "refund", "crash"]),
        st.integers(0, 400),
        st.booleans(),
        st.booleans(),
    ),
    max_size=60,
)


@given(cap=st.integers(0, 3000), month=st.none() | st.integers(0, 3000), actions=ACTIONS)
@settings(max_examples=examples(300), deadline=None)
def test_a_cap_holds_in_every_revision(
    cap: int, month: int | None, actions: list[tuple[int, str, int, bool, bool]]
) -> None:
    store, all_edges = edges(cap, month=month)
    gone = list[Edge]()
    for who, what, amount, arrives, answers in actions:
        edge = all_edges[who]
        match what:
            case "pay":
                edge.pay(amount)
            case "change":
                edge.change(amount, arrives=arrives, answers=answers)
            case "surplus":
                edge.change(0, "surplus", arrives=arrives, answers=answers)
            case "all":
                edge.change(0, "all", arrives=arrives, answers=answers)
            case "refund":
                back = min(amount, edge.paid)
                edge.paid -= back
                edge.lease.add(-back, PERIODS)
            case _:  # its ceiling stays
                gone.append(edge)
                successor = Lease(f"{edge.lease.life}'", dict(edge.lease.caps))
                successor.opened(store.record, store.revision)
                all_edges[who] = Edge(successor, store)
        assert store.record.used(DAY) <= cap
        assert store.record.used(MONTH) <= (month if month is not None else 1 << 60)
        paid = sum(each.paid for each in (*all_edges, *gone))
        assert paid <= (cap if month is None else min(cap, month))


def test_all_of_a_cap_can_be_spent_by_whoever_is_left() -> None:
    store, (one, other, third) = edges(10_000)
    for edge in (one, other, third):
        edge.change(10)
        assert edge.pay(10)
        edge.change(0)
    other.change(0, "all")
    third.change(0, "all")
    for _ in range(100):
        one.change(10)
        while one.pay(10):
            pass
    assert one.paid + other.paid + third.paid == 10_000 == store.record.used(DAY)


def test_a_change_whose_answer_was_lost_is_made_once() -> None:
    store, (one, other, _) = edges(1000)
    one.change(10, answers=False)
    one.lease.seen(store.record, store.revision)  # as the follower has it
    assert not one.lease.is_to_give(PERIODS, 10.0), "it is to raise the ceiling yet"
    other.change(10)
    other.change(10)  # behind the other's
    revision = store.revision
    one.change(10)
    assert store.revision == revision
    assert store.record.ceilings["life-0"].number == 1
    assert one.pay(10)


def test_what_is_given_back_is_given_up_before_it_is_written() -> None:
    _, (one, *_) = edges(100_000)
    one.change(1000)
    assert one.pay(1)
    one.change(0, "all", arrives=False)
    assert not one.pay(1)


def test_who_lacks_says_so_and_others_give() -> None:
    store, (one, other, _) = edges(100)
    one.change(100)
    assert store.record.used(DAY) == 100
    other.change(60)
    assert not other.pay(60)
    assert store.record.wanted == {"life-1": 60}
    one.lease.seen(store.record, store.revision)
    assert one.lease.is_to_give(PERIODS, 10.0)
    one.change(0, "surplus")
    assert store.record.wanted == {}
    other.lease.seen(store.record, store.revision)
    other.change(60)
    assert other.pay(60)


def test_a_lowered_cap_is_known_to_all_and_recalls_what_is_not_spent() -> None:
    store, (one, other, _) = edges(100_000)
    for edge in (one, other):
        edge.change(5_000)
        assert edge.pay(1_000)
    assert other.lease.go_by({"day": 3_000})
    other.change(0, "surplus")
    one.lease.seen(store.record, store.revision)
    assert one.lease.is_to_give(PERIODS, 10.0)
    one.change(0, "surplus")
    assert store.record.used(DAY) <= 3_000
    assert store.record.caps == {"day": 3_000}
    assert one.lease.cap(DAY) == 3_000
    assert not one.pay(2_000)


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_cap_that_is_lowered_during_a_write_is_told_by_the_next(is_answer_lost: bool) -> None:
    lease = Lease("a", {"day": 1000})
    planned = lease.plan(PERIODS, 100, 0.0)
    assert planned is not None
    lease.go_by({"day": 25})
    if is_answer_lost:
        assert lease.found(planned, 1)
    else:
        lease.stored(1)
    assert lease.is_lowered
    assert lease.room(PERIODS) == 25
    lowered = lease.plan(PERIODS, 0, 0.0, giving="surplus")
    assert lowered is not None
    assert lowered.caps == {"day": 25}


def test_a_store_that_forgot_is_told_again() -> None:
    store, (one, other, _) = edges(1000)
    one.change(600)
    assert one.pay(600)
    store.record, store.revision = CapRecord(), store.revision + 1
    one.lease.seen(store.record, store.revision)
    assert one.lease.is_forgotten(PERIODS)
    one.change(0)
    assert not one.lease.is_forgotten(PERIODS)
    assert store.record.used(DAY) >= 600
    other.lease.seen(store.record, store.revision)
    other.change(500)
    assert not other.pay(500)


def test_whoever_is_first_at_a_store_that_forgot_takes_nothing_of_the_others() -> None:
    store, (one, other, third) = edges(1000)
    for edge in (one, other, third):
        edge.change(100)
    rooms = [edge.lease.room(PERIODS) for edge in (one, other, third)]
    for edge in (other, third):
        assert edge.pay(edge.lease.room(PERIODS))
    store.record, store.revision = CapRecord(), 0
    for edge in (one, other, third):
        assert not edge.lease.found(store.record, store.revision)
    for _ in range(3):  # more is needed than it has
        one.change(900)
        assert one.lease.room(PERIODS) == rooms[0]
        assert not one.lease.is_low(PERIODS, one.now)
    for edge in (other, third):
        edge.change(0)
    assert store.record.used(DAY) == sum(rooms)
    one.lease.seen(store.record, store.revision)
    one.now += RESTORE_SECONDS
    one.change(1000 - rooms[1] - rooms[2])
    assert one.pay(1000 - rooms[1] - rooms[2])
    assert store.record.used(DAY) == 1000


def test_a_read_of_a_server_that_was_behind_puts_nothing_off() -> None:
    _, (one, *_) = edges(1000)
    one.change(100)
    one.lease.found(CapRecord(), 0)
    one.change(200)
    assert one.pay(200), "what it found is not the last, and that one has what it wrote"


def test_days_that_are_over_are_dropped_and_the_month_goes_on() -> None:
    store, (one, *_) = edges(100, month=1000)
    one.change(50)
    assert one.pay(50)
    for day in ("2026-11-22", "2026-11-23"):
        planned = one.lease.plan((day, MONTH), 50, 100.0, edges=3)
        assert planned is not None
        assert store.write(planned, one.lease.revision)
        one.lease.stored(store.revision)
        assert one.lease.spend(50, (day, MONTH))
    assert store.record.used(DAY) == 0
    assert store.record.used("2026-11-22") >= 50
    assert store.record.used(MONTH) >= 150


def test_a_cap_of_few_requests_has_no_leases() -> None:
    store, (one, *_) = edges(100)
    one.change(10)
    assert one.pay(10)
    one.change(10)
    assert store.record.used(DAY) == 20
    one.change(0, "surplus")
    assert store.record.used(DAY) == 10


def test_lives_are_bounded_and_what_they_spent_stays_spent() -> None:
    store = Store()
    for number in range(MAX_LIVES + 10):
        lease = Lease(f"life-{number}", {"day": 1_000_000})
        lease.opened(store.record, store.revision)
        edge = Edge(lease, store)
        edge.change(10)
        assert edge.pay(10)
        edge.change(0, "all")
    assert len(store.record.ceilings) == MAX_LIVES
    assert store.record.used(DAY) == 10 * (MAX_LIVES + 10)


@pytest.mark.parametrize("least", [1, 100])
def test_a_lease_lasts_for_a_time_at_the_pace_of_late(least: int) -> None:
    _, (one, *_) = edges(1 << 50)
    for _ in range(40):  # 500 requests a second
        one.now += 1.0
        if one.lease.is_low(PERIODS, one.now):
            one.change(least)
        for _ in range(500):
            one.pay(least)
    assert 30 * 500 * least < one.lease.room(PERIODS) < 94 * 500 * least
