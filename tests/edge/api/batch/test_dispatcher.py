"""The dispatcher, on the SQLite queue and with answers that a test scripts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.edge.api.batch.dispatching import MODEL, Platform, a_claim, answered, dispatching, play

from skerry.errors import Unavailable
from skerry_edge.api.batch.dispatcher import Defer, Settle, judge
from skerry_edge.api.batch.execution import Answered
from skerry_edge.api.batch.wire import decode_reply
from skerry_edge.ledger.batches import BatchLimits
from skerry_regions.queue import BatchRecord, Claim, Settled


@pytest.mark.parametrize(
    ("said", "claim", "verdict"),
    [
        (answered(200), a_claim(), Settle("succeeded")),
        (answered(400), a_claim(), Settle("failed")),
        (answered(401), a_claim(), Settle("failed")),
        (answered(429, retry_after="7"), a_claim(is_last=True), Defer(7.0, counts=False)),
        (answered(429, retry_after="9999"), a_claim(), Defer(60.0, counts=False)),
        (answered(503), a_claim(5, is_last=True), Defer(1.0, counts=False)),
        (answered(500), a_claim(1), Defer(2.0, counts=True)),
        (answered(408), a_claim(3), Defer(8.0, counts=True)),
        (answered(500), a_claim(9), Defer(60.0, counts=True)),
        (answered(500), a_claim(5, is_last=True), Settle("dead")),
    ],
)
def test_what_an_answer_means(said: Answered, claim: Claim, verdict: Settle | Defer) -> None:
    assert judge(said, claim, 60.0, 1.0) == verdict


@pytest.fixture
def limits() -> BatchLimits:
    return BatchLimits(max_in_flight=3, interactive_weight=2)


def test_a_batch_is_done_and_closed(tmp_path: Path, limits: BatchLimits) -> None:
    async def act(platform: Platform) -> None:
        platform.script = lambda claim: answered(400 if claim.payload == b"3" else 200)
        await platform.submit(8)
        async with dispatching(platform):
            await platform.ended.wait()
        record = platform.queue.batch("t", "b")
        assert record is not None
        assert (record.succeeded, record.failed, record.ending) == (7, 1, "completed")
        assert platform.closed == ["b"]
        assert platform.most_running == 3
        results = platform.queue.results("b")
        assert [decode_reply(each.result).status for each in results] == [200] * 3 + [400] + [
            200
        ] * 4

    play(tmp_path, limits, act)


def test_interactive_requests_come_first(tmp_path: Path, limits: BatchLimits) -> None:
    async def act(platform: Platform) -> None:
        platform.held, platform.interactive = True, 1
        await platform.submit(4)
        async with dispatching(platform):
            await platform.until(lambda: len(platform.running) == 1)
            dispatcher = platform.dispatcher()
            assert platform.most_running == 1
            platform.interactive = 2
            assert dispatcher.room == 0
            platform.interactive = 0
            platform.batches.submitted.set()
            await platform.until(lambda: len(platform.running) == 3)

    play(tmp_path, limits, act)


def test_a_busy_platform_costs_no_attempt(tmp_path: Path, limits: BatchLimits) -> None:
    async def act(platform: Platform) -> None:
        said = [answered(429, retry_after="0"), answered()]
        attempts: list[int] = []

        def script(claim: Claim) -> Answered:
            attempts.append(claim.attempt)
            return said.pop(0)

        platform.script = script
        await platform.submit(1)
        async with dispatching(platform):
            await platform.ended.wait()
        assert attempts == [1, 1]

    play(tmp_path, limits, act)


def test_cancelling_breaks_off_what_runs(tmp_path: Path, limits: BatchLimits) -> None:
    async def act(platform: Platform) -> None:
        platform.held = True
        await platform.submit(5)
        async with dispatching(platform):
            await platform.until(lambda: len(platform.running) == 3)
            await asyncio.to_thread(platform.queue.cancel, "t", "b")
            await platform.ended.wait()
            while platform.running:  # noqa: ASYNC110  the lease's next renewal tells
                await asyncio.sleep(0.01)
        assert [each.state for each in platform.queue.results("b")] == ["cancelled"] * 5

    play(tmp_path, limits, act)


def test_one_of_two_leads_and_the_other_takes_over(tmp_path: Path, limits: BatchLimits) -> None:
    async def act(platform: Platform) -> None:
        platform.held = True
        await platform.submit(3)
        first = platform.dispatcher()
        task = asyncio.create_task(first.run())
        await platform.until(lambda: len(platform.running) == 3)
        async with dispatching(platform):
            await first.stop(task)
            platform.held = False
            await platform.ended.wait()
        states = [each.state for each in platform.queue.results("b")]
        assert states == ["succeeded"] * 3

    play(tmp_path, limits, act)


def test_models_that_nobody_serves_wait(tmp_path: Path, limits: BatchLimits) -> None:
    async def act(platform: Platform) -> None:
        platform.models = frozenset()
        await platform.submit(1)
        async with dispatching(platform):
            await asyncio.to_thread(platform.queue.has_work)
            assert not platform.running
            platform.models = frozenset({MODEL})
            platform.batches.submitted.set()
            await platform.ended.wait()

    play(tmp_path, limits, act)


def test_a_closing_that_fails_is_tried_again(
    tmp_path: Path, limits: BatchLimits, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(platform: Platform) -> None:
        dispatcher = platform.dispatcher()
        closing = dispatcher._close_out
        failures = [OSError("no room")]

        def close_out(record: BatchRecord) -> None:
            if failures:
                raise failures.pop()
            closing(record)

        dispatcher._close_out = close_out
        await platform.submit(1)
        task = asyncio.create_task(dispatcher.run())
        await platform.ended.wait()
        await dispatcher.stop(task)
        assert not platform.queue.has_work()
        assert "no room" in caplog.text

    play(tmp_path, limits, act)


@pytest.mark.parametrize("failure", [Unavailable("queue.db cannot be used now."), ValueError("?")])
def test_work_goes_on_after_a_failure(
    tmp_path: Path,
    limits: BatchLimits,
    failure: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(platform: Platform) -> None:
        ended, failures = platform.queue.ended, [failure]

        def fail_once() -> list[BatchRecord]:
            if failures:
                raise failures.pop()
            return ended()

        monkeypatch.setattr(platform.queue, "ended", fail_once)
        await platform.submit(2)
        async with dispatching(platform):
            await platform.ended.wait()
        assert "batches wait" in caplog.text

    play(tmp_path, limits, act)


def test_an_answer_is_kept_until_the_queue_can_be_used(
    tmp_path: Path, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(platform: Platform) -> None:
        settle, failures, attempts = platform.queue.settle, [Unavailable("away")], list[int]()

        def fail_once(claim: Claim, state: Settled, result: bytes) -> bool:
            if failures:
                raise failures.pop()
            return settle(claim, state, result)

        def answer(claim: Claim) -> Answered:
            attempts.append(claim.attempt)
            return answered()

        monkeypatch.setattr(platform.queue, "settle", fail_once)
        platform.script = answer
        await platform.submit(2)
        async with dispatching(platform):
            await platform.ended.wait()
        assert attempts == [1, 1]

    play(tmp_path, limits, act)
