"""Hysteresis, and the watch over it."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat

from skerry_dns.watch.health import HealthWatch, Hysteresis
from skerry_regions.topology.zone_spec import HealthSpec

FAILURES, SUCCESSES = 3, 5


def test_quick_to_leave_and_slow_to_return() -> None:
    region = Hysteresis(HealthSpec())
    assert [region.probed(False) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert not region.up
    returning = [True] * (SUCCESSES - 1) + [False] + [True] * SUCCESSES
    changes = [region.probed(ok) for ok in returning]
    assert changes == [False] * (len(returning) - 1) + [True]
    assert region.up


def test_a_single_failure_now_and_then_moves_nobody() -> None:
    region = Hysteresis(HealthSpec())
    for ok in (False, False, True) * 10:
        assert not region.probed(ok)


def test_changes_are_told_once_and_together() -> None:
    async def main() -> None:
        answers = {
            "fra": chain(repeat(False, FAILURES), repeat(True)),
            "iad": repeat(True),
            "nrt": repeat(False),
        }

        def probe(name: str) -> bool:
            return next(iter(answers[name]))

        async def asked(name: str) -> bool:
            return probe(name)

        told: list[frozenset[str]] = []
        watch = HealthWatch({name: lambda n=name: asked(n) for name in answers}, told.append)
        for _ in range(FAILURES + SUCCESSES + 3):
            await watch.round()
        assert told == [frozenset({"fra", "nrt"}), frozenset({"nrt"})]

    asyncio.run(main())
