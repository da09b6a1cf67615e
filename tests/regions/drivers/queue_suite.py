"""What every driver of the batch queue must do. A driver's test module subclasses `QueueSuite`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from skerry_regions.queue import (
    BatchRecord,
    Claim,
    KeyInUse,
    NewBatch,
    NewItem,
    Queue,
    QueueLimits,
    QueueRefused,
)

LIMITS = QueueLimits(
    batch_items=8,
    payload_bytes=64,
    result_bytes=64,
    meta_bytes=64,
    tenant_waiting=12,
    tenant_bytes=200,
    attempts=3,
    retention_seconds=1000.0,
)
LEASE = 10.0
MODELS = frozenset({"m"})


class Store(Protocol):
    """A driver's store, with a clock that the suite moves."""

    def open(self) -> Queue:
        """Another worker's or edge's view of the same store, bounded by `LIMITS`."""
        ...

    def pass_time(self, seconds: float) -> None: ...


def batch(
    id: str = "b", *, tenant: str = "t", model: str = "m", key: str | None = None,
    fingerprint: bytes = b"", window: float = 500.0, meta: bytes = b"meta",
) -> NewBatch:  # fmt: skip
    return NewBatch(
        id=id, tenant=tenant, token="token", kind="kind", model=model, target="/target", meta=meta,
        key=key, fingerprint=fingerprint, window_seconds=window,
    )  # fmt: skip


def items(count: int, size: int = 2) -> list[NewItem]:
    return [NewItem(f"{i:0{size}}".encode(), f"r{i}") for i in range(count)]


def claim(queue: Queue, limit: int = 100, owner: str = "w") -> list[Claim]:
    return queue.claim(owner, MODELS, limit, LEASE)


def places(claims: list[Claim]) -> list[tuple[str, int]]:
    return [(each.batch, each.index) for each in claims]


def of(queue: Queue, id: str = "b") -> BatchRecord:
    record = queue.batch(None, id)
    assert record is not None
    return record


class QueueSuite:
    """Tests of the contract in `skerry_regions.queue`."""

    @pytest.fixture
    def queue(self, store: Store) -> Queue:
        return store.open()

    # --- submitting ------------------------------------------------------------------------------

    def test_a_batch_is_known_to_its_tenant(self, queue: Queue) -> None:
        record = queue.submit(batch(), items(3))
        assert (record.id, record.tenant, record.kind, record.model) == ("b", "t", "kind", "m")
        assert (record.total, record.waiting, record.succeeded, record.failed) == (3, 3, 0, 0)
        assert record.meta == b"meta"
        assert record.expires_at == record.created_at + 500.0
        assert (record.started_at, record.ended_at, record.closed_at) == (None, None, None)
        assert queue.batch("t", "b") == queue.batch(None, "b") == record
        assert queue.batch("other", "b") is None
        assert queue.batch("t", "unknown") is None

    def test_batches_are_listed_newest_first(self, queue: Queue) -> None:
        for id, tenant in (("a", "t"), ("b", "u"), ("c", "t"), ("d", "t")):
            queue.submit(batch(id, tenant=tenant), items(1))
        assert [each.id for each in queue.batches()] == ["d", "c", "b", "a"]
        assert [each.id for each in queue.batches(tenant="t")] == ["d", "c", "a"]
        assert [each.id for each in queue.batches(tenant="t", after="d", limit=1)] == ["c"]
        assert queue.batches(tenant="t", after="b") == []  # another tenant's
        assert queue.batches(kind="another") == []

    def test_a_batch_without_items_has_ended(self, queue: Queue) -> None:
        assert queue.submit(batch(), []).ending == "completed"
        assert claim(queue) == []

    def test_a_key_names_one_batch_of_its_tenant(self, queue: Queue) -> None:
        first = queue.submit(batch("a", key="k", fingerprint=b"1"), items(2))
        assert queue.submit(batch("b", key="k", fingerprint=b"1"), items(2)) == first
        with pytest.raises(KeyInUse, match="'k'"):
            queue.submit(batch("c", key="k", fingerprint=b"2"), items(2))
        assert queue.submit(batch("d", tenant="u", key="k"), items(1)).id == "d"
        assert queue.submit(batch("e"), items(1)).id == "e"  # no key is no name
        assert queue.submit(batch("f"), items(1)).id == "f"

    @pytest.mark.parametrize(
        ("asked", "requests", "message"),
        [
            (batch(), items(9), "at most 8 requests"),
            (batch(meta=b"m" * 65), items(1), "at most 64 bytes"),
            (batch(), [*items(2), NewItem(b"x" * 65)], "request 2 has 65 bytes, at most 64"),
        ],
    )
    def test_what_is_too_large_is_refused(
        self, queue: Queue, asked: NewBatch, requests: list[NewItem], message: str
    ) -> None:
        with pytest.raises(QueueRefused, match=message) as refused:
            queue.submit(asked, requests)
        assert not refused.value.is_full
        assert queue.batches() == []

    def test_a_tenant_may_have_so_many_waiting(self, queue: Queue) -> None:
        queue.submit(batch("a"), items(8))
        with pytest.raises(QueueRefused, match="8 requests wait already") as refused:
            queue.submit(batch("b"), items(5))
        assert refused.value.is_full
        queue.submit(batch("b", tenant="u"), items(5))
        queue.settle(claim(queue, 1)[0], "succeeded", b"")
        queue.submit(batch("c"), items(5))

    def test_a_tenant_may_store_so_much(self, queue: Queue) -> None:
        queue.submit(batch("a"), [NewItem(b"x" * 60)] * 3)
        with pytest.raises(QueueRefused, match="180 bytes already"):
            queue.submit(batch("b"), [NewItem(b"x" * 21)])
        [first, second, _] = claim(queue)
        queue.settle(first, "succeeded", b"y" * 10)  # in place of its payload
        queue.settle(second, "dead", b"y" * 10)  # beside its payload
        assert of(queue, "a").num_bytes == 10 + 70 + 60
        queue.cancel("t", "a")
        assert of(queue, "a").num_bytes == 80

    # --- claiming --------------------------------------------------------------------------------

    def test_a_claim_carries_the_item(self, queue: Queue) -> None:
        queue.submit(batch(), items(1))
        [claimed] = claim(queue)
        assert (claimed.batch, claimed.index, claimed.payload) == ("b", 0, b"00")
        assert (claimed.tenant, claimed.token, claimed.kind) == ("t", "token", "kind")
        assert (claimed.model, claimed.target, claimed.owner) == ("m", "/target", "w")
        assert (claimed.attempt, claimed.is_last) == (1, False)
        assert of(queue).started_at is not None

    def test_nothing_is_claimed_twice(self, store: Store) -> None:
        one, other = store.open(), store.open()
        one.submit(batch(), items(4))
        assert places(claim(one, 3, "w1")) == [("b", 0), ("b", 1), ("b", 2)]
        assert places(claim(other, 3, "w2")) == [("b", 3)]
        assert claim(one, 3, "w1") == []

    def test_threads_share_the_items(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch(), items(8))
        with ThreadPoolExecutor(4) as threads:
            claimed = list(threads.map(lambda n: claim(store.open(), 1, f"w{n}"), range(8)))
        assert sorted(each.index for [each] in claimed) == list(range(8))

    def test_tenants_take_turns(self, queue: Queue) -> None:
        queue.submit(batch("a"), items(4))
        queue.submit(batch("b", tenant="u"), items(2))
        assert places(claim(queue, 3)) == [("a", 0), ("b", 0), ("a", 1)]
        queue.submit(batch("c", tenant="v"), items(1))
        assert places(claim(queue)) == [("c", 0), ("b", 1), ("a", 2), ("a", 3)]

    def test_only_models_that_are_served_are_claimed(self, queue: Queue) -> None:
        queue.submit(batch("a", model="x"), items(1))
        queue.submit(batch("b"), items(1))
        assert places(claim(queue)) == [("b", 0)]
        assert queue.claim("w", frozenset(), 9, LEASE) == []
        assert places(queue.claim("w", frozenset({"x", "y"}), 9, LEASE)) == [("a", 0)]

    # --- leases ----------------------------------------------------------------------------------

    def test_a_lapsed_lease_frees_the_item(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch(), items(1))
        [first] = claim(queue, owner="w1")
        store.pass_time(LEASE - 1)
        assert claim(queue, owner="w2") == []
        store.pass_time(1)
        [second] = claim(queue, owner="w2")
        assert second.attempt == 2
        assert not queue.settle(first, "succeeded", b"late")
        assert queue.settle(second, "succeeded", b"second")
        assert [each.result for each in queue.results("b")] == [b"second"]

    def test_a_renewed_lease_lasts(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch(), items(2))
        held = claim(queue, owner="w1")
        store.pass_time(LEASE - 1)
        numbers = {each.item for each in held}
        assert queue.renew("w2", numbers, LEASE) == frozenset()
        assert queue.renew("w1", numbers, LEASE) == numbers
        store.pass_time(LEASE - 1)
        assert claim(queue, owner="w2") == []
        queue.renew("w1", {held[0].item}, LEASE)
        store.pass_time(1)
        assert places(claim(queue, owner="w2")) == [("b", 1)]

    def test_an_item_is_settled_once(self, queue: Queue) -> None:
        queue.submit(batch(), items(1))
        [claimed] = claim(queue)
        assert queue.settle(claimed, "succeeded", b"one")
        assert not queue.settle(claimed, "failed", b"two")
        assert not queue.defer(claimed, 0.0, counts=True)
        assert (of(queue).succeeded, of(queue).failed, of(queue).ending) == (1, 0, "completed")
        assert queue.renew("w", {claimed.item}, LEASE) == frozenset()

    def test_one_worker_leads(self, store: Store) -> None:
        queue = store.open()
        assert queue.lead("w1", LEASE)
        assert not store.open().lead("w2", LEASE)
        store.pass_time(LEASE - 1)
        assert queue.lead("w1", LEASE)
        store.pass_time(LEASE - 1)
        assert not queue.lead("w2", LEASE)
        store.pass_time(1)
        assert queue.lead("w2", LEASE)
        assert not queue.lead("w1", LEASE)

    def test_a_worker_that_leaves_gives_everything_back(self, queue: Queue) -> None:
        queue.submit(batch(), items(2))
        queue.lead("w1", LEASE)
        claim(queue, owner="w1")
        queue.release("w1")
        assert queue.lead("w2", LEASE)
        assert [each.attempt for each in claim(queue, owner="w2")] == [1, 1]

    # --- attempts --------------------------------------------------------------------------------

    def test_a_deferred_item_waits(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch(), items(2))
        first, second = claim(queue)
        assert queue.defer(first, 5.0, counts=True)
        assert queue.defer(second, 5.0, counts=False)
        assert claim(queue) == []
        store.pass_time(5.0)
        assert [(each.index, each.attempt) for each in claim(queue)] == [(0, 2), (1, 1)]

    def test_the_last_attempt_is_told(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch(), items(1))
        for attempt in (1, 2, 3):
            [claimed] = claim(queue)
            assert (claimed.attempt, claimed.is_last) == (attempt, attempt == 3)
            queue.defer(claimed, 0.0, counts=True)
        assert claim(queue) == []

    def test_an_item_that_loses_every_attempt_is_dead(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch(), items(1))
        for _ in range(3):
            queue.tend()
            assert of(queue).dead == 0
            claim(queue)
            store.pass_time(LEASE)
        queue.tend()
        assert (of(queue).dead, of(queue).failed, of(queue).ending) == (1, 1, "completed")
        [lost] = queue.results("b")
        assert (lost.state, lost.result, lost.reference) == ("dead", b"", "r0")

    def test_dead_items_can_be_tried_again(self, queue: Queue) -> None:
        queue.submit(batch(), items(3))
        for claimed, state in zip(claim(queue), ("succeeded", "failed", "dead"), strict=True):
            queue.settle(claimed, state, b"x")  # type: ignore[arg-type]
        queue.close_batch("b")
        assert not queue.has_work()
        assert queue.retry("other", "b") == 0
        stored = of(queue).num_bytes
        assert queue.retry("t", "b") == 1
        record = of(queue)
        assert record.num_bytes == stored - len(b"x")
        assert (record.succeeded, record.failed, record.dead) == (1, 1, 0)
        assert (record.ending, record.closed_at, record.waiting) == (None, None, 1)
        assert queue.has_work()
        [again] = claim(queue)
        assert (again.index, again.attempt, again.payload) == (2, 1, b"02")
        queue.settle(again, "succeeded", b"y")
        assert [each.state for each in queue.results("b")] == ["succeeded", "failed", "succeeded"]
        assert of(queue).ending == "completed"
        assert queue.retry("t", "b") == 0

    def test_no_more_are_tried_again_than_may_wait(self, queue: Queue) -> None:
        queue.submit(batch(), items(5))
        for claimed in claim(queue):
            queue.settle(claimed, "dead", b"x")
        queue.submit(batch("c"), items(8))
        before = of(queue)
        assert before.dead == 5
        with pytest.raises(QueueRefused, match="8 requests wait already") as refused:
            queue.retry("t", "b")
        assert refused.value.is_full
        assert of(queue) == before
        queue.cancel("t", "c")
        assert queue.retry("t", "b") == 5

    # --- ends ------------------------------------------------------------------------------------

    def test_results_come_in_pages(self, queue: Queue) -> None:
        queue.submit(batch(), items(5))
        for claimed in reversed(claim(queue)[:4]):
            queue.settle(claimed, "succeeded", b"x")
        assert [each.index for each in queue.results("b", limit=2)] == [0, 1]
        assert [each.index for each in queue.results("b", after=1, limit=9)] == [2, 3]
        assert [each.reference for each in queue.results("b", after=2)] == ["r3"]

    def test_a_cancelled_batch_ends_at_once(self, queue: Queue) -> None:
        queue.submit(batch(), items(3))
        first, second = claim(queue, 2)
        queue.settle(first, "succeeded", b"x")
        assert queue.cancel("other", "b") is None
        record = queue.cancel("t", "b")
        assert record is not None
        assert (record.ending, record.succeeded, record.waiting) == ("cancelled", 1, 0)
        assert not queue.settle(second, "succeeded", b"x")
        assert queue.renew("w", {second.item}, LEASE) == frozenset()
        assert claim(queue) == []
        states = [each.state for each in queue.results("b")]
        assert states == ["succeeded", "cancelled", "cancelled"]
        assert queue.cancel("t", "b") == record
        assert queue.retry("t", "b") == 0

    def test_a_late_batch_expires(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch("a", window=100.0), items(2))
        queue.submit(batch("b", window=101.0), items(1))
        queue.settle(claim(queue, 1)[0], "succeeded", b"x")
        store.pass_time(100.0)
        queue.tend()
        assert (of(queue, "a").ending, of(queue, "b").ending) == ("expired", None)
        assert [each.state for each in queue.results("a")] == ["succeeded", "expired"]
        assert places(claim(queue)) == [("b", 0)]

    def test_results_are_kept_for_a_time(self, store: Store) -> None:
        queue = store.open()
        queue.submit(batch("a"), items(1))
        queue.settle(claim(queue)[0], "succeeded", b"x")
        queue.submit(batch("b", window=5000.0), items(1))
        store.pass_time(999.0)
        queue.tend()
        assert len(queue.results("a")) == 1
        store.pass_time(1.0)
        queue.tend()
        assert queue.results("a") == []
        assert [each.id for each in queue.batches()] == ["b"]

    def test_batches_are_closed_once_they_ended(self, queue: Queue) -> None:
        assert not queue.has_work()
        queue.submit(batch("a"), items(1))
        queue.submit(batch("b"), items(1))
        assert queue.has_work()
        assert queue.ended() == []
        queue.settle(claim(queue)[0], "succeeded", b"x")
        assert [each.id for each in queue.ended()] == ["a"]
        queue.close_batch("a")
        assert queue.ended() == []
        assert of(queue, "a").closed_at is not None
        assert queue.has_work()
        queue.cancel("t", "b")
        queue.close_batch("b")
        assert not queue.has_work()

    def test_what_is_submitted_outlives_the_process(self, store: Store) -> None:
        first = store.open()
        first.submit(batch(), items(2))
        first.settle(claim(first, 1)[0], "succeeded", b"x")
        first.close()
        second = store.open()
        assert of(second).succeeded == 1
        assert places(claim(second)) == [("b", 1)]
