"""Learned speeds in a world: edges hear how long nodes' steps took, and believe what they learn."""

from __future__ import annotations

from collections.abc import Callable

from skerry_regions.region.speed_learning import SpeedBook
from skerry_regions.speeds import StepSample
from skerry_regions.twin.kernel import state
from skerry_regions.twin.world import Built

SAMPLE_SECONDS = 0.25  # of steps that a node sums up before it says how long they took


class Learning:
    """The product's `SpeedBook`, one for all edges."""

    def __init__(self, built: Built, at: Callable[[float, Callable[[float], None]], None]) -> None:
        """`at` has something called at a time of the virtual clock."""
        self._built, self._at, self._book = built, at, SpeedBook()
        factor = built.scenario.router.learn_from
        assert factor is not None
        for name, pool in zip(built.names, built.pools, strict=True):
            key = f"{pool.region}/{pool.name}"
            self._book.add_node(name, key, pool.speed.as_speed().scaled(factor))
        at(built.scenario.router.report_seconds, self._learn)

    def _learn(self, now: float) -> None:
        built, samples = self._built, self._built.world.nodes.samples
        for slot, name in enumerate(built.names):
            sums = samples[slot]
            if sums[state.S_SECONDS] < SAMPLE_SECONDS:
                continue
            sample = StepSample(
                steps=int(sums[state.S_STEPS]),
                seconds=float(sums[state.S_SECONDS]),
                new_tokens=int(sums[state.S_NEW]),
                attended=float(sums[state.S_PAIRS]),
                streams=int(sums[state.S_STREAMS]),
                context=float(sums[state.S_CONTEXT]),
            )
            sums[:] = 0.0
            self._book.learn(name, sample)
            built.believe(slot, self._book.speed(name))
        self._at(now + built.scenario.router.report_seconds, self._learn)
