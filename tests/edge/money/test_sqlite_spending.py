"""Caps hold whatever runs at once, and every cent that was not used comes back."""

from __future__ import annotations

import asyncio
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import Clock
from tests.properties import examples

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.spending import Hold, Spending, periods_at
from skerry_edge.money.sqlite_spending import SqliteSpending

TOKEN = "0123456789abcdef"
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()
DAY = 86_400.0


def budget(caps: Caps, id: str = TOKEN) -> tuple[Budget, ...]:
    return (Budget(id, caps),)


def test_a_reservation_counts_until_it_is_settled(tmp_path: Path) -> None:
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=Clock(NOON))
    caps = Caps(per_day=1.0)

    async def use() -> None:
        hold = await spending.reserve(budget(caps), 0.75)
        with pytest.raises(QuotaExceeded) as refused:
            await spending.reserve(budget(caps), 0.5)
        assert refused.value.message == (
            "This API token may spend US$ 1 per day: 0.75 is spent, and this request may cost up "
            "to 0.5."
        )
        assert refused.value.retry_after == DAY / 2
        await spending.reserve(budget(caps, "another"), 0.5)
        spending.settle(hold, 0.5)
        await spending.reserve(budget(caps), 0.5)

    asyncio.run(use())
    assert asyncio.run(spending.spent(TOKEN)) == (1.0, 1.0)
    asyncio.run(spending.close())


def test_what_many_requests_did_not_use_comes_back_when_they_end_at_once(tmp_path: Path) -> None:
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=Clock(NOON))

    async def use() -> None:
        reserving = [spending.reserve(budget(Caps(per_day=1.0)), 0.001) for _ in range(1000)]
        for hold in await asyncio.gather(*reserving):
            spending.settle(hold, 0.0)

    asyncio.run(use())
    assert asyncio.run(spending.spent(TOKEN)) == (0.0, 0.0)
    asyncio.run(spending.close())


def test_days_and_months_begin_anew(tmp_path: Path) -> None:
    clock = Clock(NOON)
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=clock)
    caps = Caps(per_day=1.0, per_month=1.5)

    async def use() -> None:
        await spending.reserve(budget(caps), 1.0)
        clock.now += DAY / 2
        assert await spending.spent(TOKEN) == (0.0, 1.0)
        with pytest.raises(QuotaExceeded, match="per month") as refused:
            await spending.reserve(budget(caps), 1.0)
        assert refused.value.retry_after == 9 * DAY  # 22 November to 1 December
        clock.now += 9 * DAY
        await spending.reserve(budget(caps), 1.0)

    asyncio.run(use())
    asyncio.run(spending.close())


def test_what_is_settled_after_midnight_belongs_to_the_day_before(tmp_path: Path) -> None:
    clock = Clock(NOON)
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=clock)
    hold = asyncio.run(spending.reserve(budget(Caps(per_day=1.0)), 0.5))
    clock.now += DAY / 2
    spending.settle(hold, 0.25)
    assert asyncio.run(spending.spent(TOKEN)) == (0.0, 0.25)
    asyncio.run(spending.close())


def test_it_outlives_the_process_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "spending.db"
    for expected in (0.5, 1.0):
        spending = SqliteSpending(path, wall_clock=Clock(NOON))
        asyncio.run(spending.reserve(budget(Caps(per_day=2.0)), 0.5))
        assert asyncio.run(spending.spent(TOKEN)) == (expected, expected)
        asyncio.run(spending.close())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_old_periods_are_forgotten(tmp_path: Path) -> None:
    clock = Clock(NOON)
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=clock)
    asyncio.run(spending.reserve(budget(Caps(per_day=1.0)), 0.5))
    clock.now += 70 * DAY
    asyncio.run(spending.reserve(budget(Caps(per_day=1.0)), 0.5))
    clock.now = NOON
    assert asyncio.run(spending.spent(TOKEN)) == (0.0, 0.0)
    asyncio.run(spending.close())


def test_a_file_that_cannot_be_used_lets_nobody_in(tmp_path: Path) -> None:
    spending = SqliteSpending(tmp_path, wall_clock=Clock(NOON))  # a folder
    with pytest.raises(Unavailable):
        asyncio.run(spending.reserve(budget(Caps(per_day=1.0)), 0.5))
    asyncio.run(spending.close())


def test_who_is_cancelled_while_money_is_set_aside_gets_it_back(tmp_path: Path) -> None:
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=Clock(NOON))

    async def use() -> None:
        reserving = asyncio.create_task(spending.reserve(budget(Caps(per_day=1.0)), 0.5))
        await asyncio.sleep(0)
        reserving.cancel()
        await asyncio.gather(reserving, return_exceptions=True)
        while (await spending.spent(TOKEN))[0]:  # noqa: ASYNC110  (a thread's)
            await asyncio.sleep(0)

    asyncio.run(use())
    asyncio.run(spending.close())


@pytest.mark.parametrize(
    ("moment", "day_left", "month_left"),
    [
        (datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC), 1.0, 1.0),
        (datetime(2024, 2, 28, tzinfo=UTC), DAY, 2 * DAY),
        (datetime(2026, 12, 31, 12, tzinfo=UTC), DAY / 2, DAY / 2),
    ],
)
def test_periods(moment: datetime, day_left: float, month_left: float) -> None:
    day, month = periods_at(moment.timestamp())
    assert (day.name, month.name) == (moment.strftime("%Y-%m-%d"), moment.strftime("%Y-%m"))
    assert (day.seconds_left, month.seconds_left) == (day_left, month_left)


AMOUNTS = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.booleans()), max_size=12
)  # (the most, the share of it that it costs, whether it is settled at once)


@given(cap=st.floats(0.0, 3.0), requests=AMOUNTS)
@settings(max_examples=examples(25), deadline=None)
def test_a_cap_is_never_exceeded(cap: float, requests: list[tuple[float, float, bool]]) -> None:
    async def use(spending: Spending) -> None:
        running: list[tuple[Hold, float]] = []
        for most, share, at_once in requests:
            try:
                hold = await spending.reserve(budget(Caps(per_month=cap)), most)
            except QuotaExceeded:
                continue
            running.append((hold, most * share))
            if at_once:
                spending.settle(*running.pop())
            assert (await spending.spent(TOKEN))[1] <= cap + 1e-9
        for hold, cost in running:
            spending.settle(hold, cost)

    with tempfile.TemporaryDirectory() as folder:
        spending = SqliteSpending(Path(folder) / "spending.db", wall_clock=Clock(NOON))
        asyncio.run(use(spending))
        assert asyncio.run(spending.spent(TOKEN))[1] <= cap + 1e-9
        asyncio.run(spending.close())


def test_what_a_child_spends_counts_against_every_ancestor_and_the_account(tmp_path: Path) -> None:
    spending = SqliteSpending(tmp_path / "spending.db", wall_clock=Clock(NOON))
    parent = Budget("parent", Caps(per_day=5.0), "ancestor")
    account = Budget("account", Caps(per_month=12.0), "account")
    first, second = (Budget(name, Caps(per_day=5.0)) for name in ("first", "second"))

    async def use() -> None:
        await spending.reserve((first, parent, account), 4.0)
        with pytest.raises(QuotaExceeded, match="The API token that this one was made with may"):
            await spending.reserve((second, parent, account), 4.0)
        assert await spending.spent("second") == (0.0, 0.0)  # nothing is kept of what was refused
        hold = await spending.reserve((second, parent, account), 1.0)
        spending.settle(hold, 0.5)
        await spending.reserve((account,), 7.5)
        with pytest.raises(QuotaExceeded, match=r"This account may spend US\$ 12 per month"):
            await spending.reserve((account,), 0.25)

    asyncio.run(use())
    payers = ("first", "second", "parent", "account")
    assert [asyncio.run(spending.spent(each)) for each in payers] == [
        (4.0, 4.0), (0.5, 0.5), (4.5, 4.5), (12.0, 12.0),
    ]  # fmt: skip
    asyncio.run(spending.close())
