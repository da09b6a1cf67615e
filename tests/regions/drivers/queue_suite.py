"""What every driver of the batch queue must do. A driver's test module subclasses `QueueSuite`."""

from __future__ import annotations

import pytest
from tests.regions.drivers.claim_suite import ClaimSuite
from tests.regions.drivers.queues import (
    LEASE,
    Store,
    batch,
    claim,
    items,
    of,
    places,
)

from skerry_regions.queue import (
    KeyInUse,
    NewBatch,
    NewItem,
    Queue,
    QueueRefused,
)


class QueueSuite(ClaimSuite):
    """Tests of the contract in `skerry_regions.queue`."""

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
