"""Usage over the edges of a zone: one suite over both drivers, and a fault at each request that
goes to NATS servers."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.edge.ledger.accountants import Accountant, counts, share
from tests.edge.ledger.shared_stores import Drivers, Open, hit_everywhere
from tests.regions.drivers.faults import Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import Unavailable
from skerry_edge.ledger.usage_journal import UsageEntry, UsageJournal
from skerry_edge.ledger.usage_tables import Amount, Outcome
from skerry_regions.drivers.jetstream.stream import KeyedStream, Write
from skerry_regions.drivers.jetstream.tables import USAGE
from skerry_regions.twin.calibrated import journaled


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers[Accountant]]:
    opened: list[Accountant] = []

    def of_home(stream: KeyedStream) -> Accountant:
        edge = Accountant(tmp_path / secrets.token_hex(8) / "usage.db", stream)
        opened.append(edge)
        return edge

    yield Drivers[Accountant](spec=USAGE, nats=of_home, sqlite=Accountant)
    for edge in opened:
        edge.close()


@pytest.fixture(params=["sqlite", "nats"])
def edges(
    request: pytest.FixtureRequest,
    drivers: Drivers[Accountant],
    cluster: NatsCluster,
    tmp_path: Path,
) -> AbstractAsyncContextManager[Open[Accountant]]:
    if request.param == "sqlite":
        return drivers.in_file(tmp_path / "usage.db")
    return drivers.on(cluster)


def test_usage_at_any_edge_is_the_sum_of_the_answers(
    edges: AbstractAsyncContextManager[Open[Accountant]],
) -> None:
    """Some are retried, at the same or another edge, before or after what they repeat was sent."""
    draw = random.Random(7)

    async def use() -> None:
        async with edges as open:
            three = [await open() for _ in range(3)]
            answered: dict[str, tuple[int, int, int]] = {}
            for number in range(600):  # more than a message has
                prompt, output = draw.randrange(1, 5000), draw.randrange(1, 900)
                usage = (prompt, draw.randrange(prompt), output)
                id = f"r-{number}"
                for _ in range(draw.choice((0, 0, 0, 1, 2))):
                    broken: Outcome = draw.choice(("failed", "cancelled"))
                    draw.choice(three).request(id, broken, prompt, 0, draw.randrange(output))
                    if draw.random() < 0.1:
                        await share(*draw.sample(three, draw.randint(1, 3)))
                draw.choice(three).request(id, "completed", *usage)
                answered[id] = usage
            await share(*three)
            sums = (len(answered), *map(sum, zip(*answered.values(), strict=True)))
            assert [edge.figures() for edge in three] == [sums] * 3
            assert [edge.total().completed for edge in three] == [600] * 3

    asyncio.run(use())


def test_all_edges_keep_one_version_of_each_row_in_whatever_order_they_get_them(
    drivers: Drivers[Accountant], cluster: NatsCluster
) -> None:
    """Attempts that came as far as each other, too, and rows that run here when they end there."""
    draw = random.Random(11)

    async def use() -> None:
        async with drivers.on(cluster) as open:
            four = [await open() for _ in range(4)]
            running: list[tuple[Accountant, UsageEntry]] = []
            most: dict[str, tuple[bool, int]] = {}
            for _ in range(400):
                edge, id = draw.choice(four), f"r-{draw.randrange(40)}"
                running.append((edge, edge.admit(id)))
                if draw.random() < 0.8:
                    _, entry = running.pop(draw.randrange(len(running)))
                    outcome: Outcome = draw.choice(("failed", "cancelled", "failed", "completed"))
                    output = draw.randrange(3) + 3 * (outcome == "completed")
                    amount = Amount(
                        prompt_tokens=draw.randrange(9), cached_tokens=0, output_tokens=output
                    )
                    entry.settle(outcome, amount)
                    most.setdefault(entry.id, (False, 0))
                    if not most[entry.id][0]:
                        most[entry.id] = max(most[entry.id], (outcome == "completed", output))
                if draw.random() < 0.2:
                    await share(*draw.sample(four, draw.randint(1, 4)))
            for _, entry in running:
                entry.settle("failed", Amount())
                most.setdefault(entry.id, (False, 0))
            await share(*four)
            first, *others = (counts(edge.total()) for edge in four)
            assert others == [first] * 3
            assert first["completed"] == sum(is_complete for is_complete, _ in most.values())
            assert first["requests"] == len(most)
            late = await open()
            await late.take()
            assert counts(late.total()) == first, "a home that came later"

    asyncio.run(use())


@pytest.mark.parametrize(
    "fault",
    [
        "answer lost",
        pytest.param("connection cut", marks=pytest.mark.slow),
        pytest.param("leader stopped", marks=pytest.mark.slow),
    ],
)
def test_no_row_is_lost_or_counted_twice_whatever_fails(
    drivers: Drivers[Accountant], cluster: NatsCluster, fault: Fault
) -> None:
    async def case(open: Open[Accountant], plan: FaultPlan) -> None:
        one, other = await open(), await open()
        plan.is_armed = True
        one.request("a", "cancelled", 10, 0, 5)
        await patient(one)
        one.request("a", "completed", 10, 5, 7)
        other.request("b", "completed", 100, 50, 70)
        await patient(other)
        await patient(one)
        await patient(other)
        assert one.figures() == other.figures() == (2, 110, 55, 77)

    assert hit_everywhere(drivers, cluster, fault, case) >= 5


async def patient(edge: Accountant) -> None:
    """What the edge's own task does."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await share(edge)
            except Unavailable:
                await asyncio.sleep(0.05)


def test_rows_wait_for_servers_that_are_away_and_streams_that_are_lost_get_them_again(
    tmp_path: Path, drivers: Drivers[Accountant]
) -> None:
    cluster = NatsCluster(tmp_path / "nats", size=1)

    async def use() -> None:
        async with drivers.on(cluster) as open:
            one, other = await open(), await open()
            one.request("a", "completed", 10, 0, 1)
            one.admit("b")
            cluster.kill("n1")
            with pytest.raises(Unavailable):
                await one.send()
            one.journal.close()  # as killed: what runs has no end
            cluster.start("n1")
            again = Accountant(one.path, one.stream)
            again.journal.close()
            again.journal = UsageJournal(one.path, edge=one.id)
            await patient(again)
            await patient(other)
            assert other.figures() == (2, 11, 0, 1)
            assert (other.total().completed, other.total().aborted) == (1, 1)
            other.request("c", "completed", 1, 0, 1)
            await patient(other)
            cluster.kill("n1")
            cluster.forget("n1")
            cluster.start("n1")
            for edge in (again, other) * 2:  # each finds it, then sends
                await patient(edge)
            late = await open()
            await patient(late)
            await patient(again)
            assert late.figures() == other.figures() == again.figures() == (3, 12, 0, 2)
            again.close()

    try:
        asyncio.run(use())
    finally:
        cluster.stop()


def test_what_is_no_usage_is_left_out_and_what_is_shared_stays_bounded(
    drivers: Drivers[Accountant], cluster: NatsCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> None:
        async with drivers.on(cluster) as open:
            one, other = await open(), await open()
            assert one.stream is not None
            one.request("a", "completed", 3, 2, 1)
            await one.send()
            await one.stream.write(Write("edge", b"\x93 neither"))
            await one.stream.write(Write("edge", b"\x92\x63\x90"))  # of version 99
            other.request("b", "completed", 3, 2, 1)
            for _ in range(3):
                await share(one, other)
            assert one.figures() == other.figures() == (2, 6, 4, 2)
            state = await one.stream.state()
            assert (state.num_messages, state.num_consumers) == (4, 0)
            assert len([each for each in caplog.records if "message" in each.message]) == 4
            [own] = journaled(other.path, 0.0)
            assert own.edge == other.id, "what others sent has no chains to replay"

    asyncio.run(use())


def test_it_shares_by_itself_and_sends_the_last_row_when_it_is_closed(
    drivers: Drivers[Accountant], cluster: NatsCluster
) -> None:
    async def use() -> None:
        async with drivers.on(cluster) as open:
            one, other = await open(), await open()
            assert one.shared is not None
            assert other.shared is not None
            one.shared.start()
            other.shared.start()
            one.request("a", "completed", 3, 2, 1)
            async with asyncio.timeout(60):
                while other.figures() != (1, 3, 2, 1):  # noqa: ASYNC110  (its own pace)
                    await asyncio.sleep(0.05)
            one.request("b", "completed", 3, 2, 1)
            one.journal.close()
            await one.shared.close()
            await other.take()
            assert other.figures() == (2, 6, 4, 2)
            await other.shared.close()

    asyncio.run(use())
