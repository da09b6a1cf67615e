"""The JetStream driver of the batch queue: the suite, a fault at each request, two leaders, and
servers that are away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest
from tests.regions.drivers.faults import Fault, FaultPlan
from tests.regions.drivers.nats_queues import NatsQueues
from tests.regions.drivers.nats_server import NatsCluster
from tests.regions.drivers.queue_suite import QueueSuite
from tests.regions.drivers.queues import LEASE, LIMITS, batch, claim, items, of, places

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.queue import Claim, NewItem, Queue, QueueLimits, QueueRefused

SOME_FAULTS = [  # and at every how many-th request
    ("answer lost", 6),
    pytest.param("answer lost", 1, marks=pytest.mark.slow),
    pytest.param("connection cut", 1, marks=pytest.mark.slow),
    pytest.param("leader stopped", 1, marks=pytest.mark.slow),
]
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def store(cluster: NatsCluster) -> Iterator[NatsQueues]:
    store = NatsQueues(cluster)
    yield store
    store.close()


class TestNatsQueue(QueueSuite):
    pass


def again(call: Callable[[], T]) -> T:
    """As its callers do: until the servers can be used."""
    for _ in range(100):
        try:
            return call()
        except Unavailable:
            time.sleep(0.05)
    raise AssertionError("the servers cannot be used for long")


@pytest.mark.parametrize(("fault", "step"), SOME_FAULTS)
def test_a_batch_is_done_once_whatever_fails(cluster: NatsCluster, fault: Fault, step: int) -> None:
    """At requests of an edge that takes a batch, does it and closes it."""

    store = NatsQueues(cluster)
    other = store.open()

    def run(at: int) -> bool:
        plan, id, tenant = FaultPlan(fault, at, cluster), f"b{at}", f"t{at}"
        queue = store.open(plan)
        asked = batch(id, tenant=tenant, key="k", fingerprint=b"1")
        plan.is_armed = True
        assert again(lambda: queue.submit(asked, items(3))).total == 3
        assert again(lambda: queue.submit(asked, items(3))).id == id
        assert again(lambda: queue.lead("w", LEASE))
        held = again(lambda: claim(queue, 2))
        assert [(each.index, each.attempt) for each in held] == [(0, 1), (1, 1)]
        numbers = {each.item for each in held}
        assert again(lambda: queue.renew("w", numbers, LEASE)) == numbers
        for each in held:
            settle = partial(queue.settle, each, "succeeded", b"x")
            assert again(settle) or fault != "answer lost"
        [last] = again(lambda: claim(queue))
        again(lambda: queue.defer(last, 0.0, counts=False))
        [last] = again(lambda: claim(queue))
        again(lambda: queue.settle(last, "dead", b"y"))
        again(lambda: queue.retry(tenant, id))
        [last] = again(lambda: claim(queue))
        again(lambda: queue.settle(last, "succeeded", b"z"))
        assert [each.id for each in again(queue.ended)] == [id]
        again(lambda: queue.close_batch(id))
        plan.is_armed = False
        record = of(other, id)
        assert (record.succeeded, record.failed, record.ending) == (3, 0, "completed")
        assert record.num_bytes == 3
        assert [each.result for each in other.results(id)] == [b"x", b"x", b"z"]
        assert len(other.batches(tenant=tenant)) == 1
        with pytest.raises(QueueRefused, match="3 bytes already, and with these 256"):
            other.submit(batch("c", tenant=tenant), [NewItem(b"x" * 64)] * 4)
        assert not other.settle(held[0], "failed", b"")
        return plan.was_hit

    at = 0
    while run(at):
        at += step
    assert at > 40
    store.close()


def test_what_two_edges_hold_is_settled_by_one(store: NatsQueues) -> None:
    old, new = store.open(), store.open()
    old.submit(batch(), items(4))
    assert old.lead("w1", LEASE)
    first = claim(old, 2, "w1")
    assert not new.lead("w2", LEASE)
    assert places(claim(new, 4, "w2")) == [("b", 2), ("b", 3)]
    store.pass_time(LEASE)  # the first one sleeps
    assert new.lead("w2", LEASE)
    second = claim(new, 4, "w2")
    assert sorted(places(second)) == [("b", 0), ("b", 1), ("b", 2), ("b", 3)]
    assert [old.settle(each, "succeeded", b"old") for each in first] == [False, False]
    assert old.renew("w1", {each.item for each in first}, LEASE) == frozenset()
    assert [new.settle(each, "succeeded", b"new") for each in second] == [True] * 4
    assert not old.lead("w1", LEASE)
    record = of(old)
    assert (record.succeeded, record.total, record.ending) == (4, 4, "completed")
    assert [each.result for each in old.results("b")] == [b"new"] * 4


def test_a_batch_that_dies_before_its_record_is_not_there(
    store: NatsQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.open()

    async def die(*arguments: object) -> None:
        raise Unavailable("It died.")

    with monkeypatch.context() as dying:
        dying.setattr(queue, "_commit", die)
        with pytest.raises(Unavailable, match="died"):
            queue.submit(batch(key="k"), items(4))
    assert queue.batches() == []
    assert not queue.has_work()
    assert {key[0] for key in store.stored()} == {"s", "h", "n", "i"}
    queue.submit(batch(key="k"), items(4))
    store.pass_time(3600.0)
    queue.tend()
    contents = {key.split(".")[1] for key in store.stored() if key[0] in "hni"}
    assert len(contents) == 1
    assert [each.attempt for each in claim(queue)] == []  # it expired meanwhile
    store.pass_time(LIMITS.retention_seconds)
    queue.tend()
    assert store.stored() == ["t.t"], "nothing is left of batches but their tenants' totals"


def test_a_submission_that_dies_behind_its_record_is_there(
    store: NatsQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.open()

    async def die(*arguments: object, **options: object) -> None:
        raise Unavailable("It died.")

    with monkeypatch.context() as dying:
        dying.setattr(KeyedStream, "delete", die)
        queue.submit(batch(window=9000.0), items(1))
    store.pass_time(4000.0)
    queue.tend()
    assert [each.payload for each in claim(queue)] == [b"00"]
    assert not [key for key in store.stored() if key[0] == "s"]


def test_a_batch_that_is_tried_again_elsewhere_is_not_closed(store: NatsQueues) -> None:
    queue, other = store.open(), store.open()
    queue.submit(batch(), items(1))
    queue.settle(claim(queue)[0], "dead", b"x")
    [ended] = queue.ended()
    assert other.retry("t", "b") == 1
    queue.close_batch(ended.id)
    assert of(other).closed_at is None
    assert queue.has_work()
    [again] = claim(other)
    other.settle(again, "succeeded", b"y")
    assert [each.id for each in other.ended()] == ["b"]
    other.close_batch("b")
    assert not queue.has_work()


def test_large_items_and_results_come_back(store: NatsQueues) -> None:
    queue, other = (store.open(limits=QueueLimits()) for _ in range(2))
    payloads = [bytes([number]) * size for number, size in enumerate((10, 1 << 20, 300_000, 7))]
    queue.submit(batch(), [NewItem(payload, f"r{i}") for i, payload in enumerate(payloads)])
    held = claim(other)
    assert [each.payload for each in held] == payloads
    for each in held:
        assert other.settle(each, "succeeded", each.payload * 3)
    found = queue.results("b")
    assert [each.result for each in found] == [payload * 3 for payload in payloads]
    assert of(queue).num_bytes == 3 * sum(map(len, payloads))


def test_a_batch_of_many_items_is_done_in_pages(store: NatsQueues) -> None:
    queue = store.open(limits=QueueLimits())
    queue.submit(batch(), items(3000, size=200))
    done = 0
    while held := claim(queue, 1000):
        for each in held[::250]:
            assert queue.settle(each, "succeeded", each.payload[-4:])
            done += 1
        for each in held:
            store_defer(queue, each)
        if done >= 12:
            break
    record = of(queue)
    assert (record.succeeded, record.waiting) == (done, 3000 - done)


def store_defer(queue: Queue, held: Claim) -> None:
    """Give one in a hundred back: the others' leases lapse."""
    if held.index % 100 == 1:
        assert queue.defer(held, 60.0, counts=False)


def test_servers_that_are_away_cost_batches_time_only(
    cluster: NatsCluster, store: NatsQueues
) -> None:
    queue, other = store.open(), store.open()
    queue.submit(batch(), items(2))
    assert queue.lead("w1", LEASE)
    held = claim(queue, 1, "w1")
    cluster.kill("n1")
    for call in (queue.has_work, other.tend, lambda: queue.settle(held[0], "succeeded", b"x")):
        with pytest.raises(Unavailable):
            call()
    store.pass_time(10 * LEASE)  # no lease could be renewed meanwhile
    cluster.start("n1")
    assert not again(lambda: other.lead("w2", LEASE))
    assert places(again(lambda: claim(other, 9, "w2"))) == [("b", 1)]
    assert queue.lead("w1", LEASE)
    assert queue.renew("w1", {held[0].item}, LEASE)
    assert queue.settle(held[0], "succeeded", b"x")
    assert [each.result for each in other.results("b")] == [b"x"]
