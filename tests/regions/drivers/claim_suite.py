"""What every driver of the batch queue must do for those who claim: items, leases, attempts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
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
    Queue,
    QueueRefused,
)


class ClaimSuite:
    """What `QueueSuite` has of claims."""

    @pytest.fixture
    def queue(self, store: Store) -> Queue:
        return store.open()

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
