"""A pipeline's runner without processes: steps wait in it until somebody needs what they make. And
what a request is given over it, beside what it is given without."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from bench.subjects.requests import Request
from numpy.typing import NDArray
from tests.core.kv.sane_pools import check_pool
from tests.core.toy_oracle import Answer

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import KVBlock
from skerry_core.runner import ModelRunner
from skerry_core.runners.toy import ToyRunner

Pace = Callable[[int], int]
"""How many of the orders that wait are carried out at a call, though none of them has to be."""


def lazy(waiting: int) -> int:
    return 0


def eager(waiting: int) -> int:
    return waiting


class PipelinedRunner(ToyRunner):
    """Carries out its orders, steps and blocks to write, one after the other, each as late or as
    early as `pace` says."""

    feeds = False

    def __init__(self, *, depth: int, pace: Pace = lazy, **options: Any) -> None:
        super().__init__(**options)
        self.steps_ahead = depth - 1
        self.calls: list[str] = []  # "L", "C", and "x" for a block that leaves
        self.rows: deque[int] = deque()  # of steps under way
        self._pace = pace
        self._orders: deque[Callable[[], None]] = deque()
        self._num_writes = 0  # of those
        self._results: deque[StepResult] = deque()

    def execute(self, batch: ForwardBatch) -> StepResult:
        raise AssertionError("it overlaps")

    def launch(self, batch: ForwardBatch) -> None:
        assert len(self.rows) <= self.steps_ahead
        assert batch.feeds is None
        self.calls.append("L")
        self.rows.append(batch.num_rows)
        self._orders.append(partial(self._compute, deepcopy(batch)))
        self._go_on()

    def collect(self) -> StepResult:
        self.calls.append("C")
        self.rows.popleft()
        while not self._results:
            self._orders.popleft()()
        self._go_on()
        return self._results.popleft()

    def export_block(self, block: int) -> NDArray[np.generic]:
        self.calls.append("x")
        while self._num_writes:
            self._orders.popleft()()
        self._go_on()
        return super().export_block(block)

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        self._num_writes += 1
        self._orders.append(partial(self._admit, block, data.copy()))
        self._go_on()

    def last_logits(self) -> Float32:
        assert not self.rows, "another step may have made others"
        return super().last_logits()

    def _go_on(self) -> None:
        for _ in range(self._pace(len(self._orders))):
            self._orders.popleft()()

    def _compute(self, batch: ForwardBatch) -> None:
        self._results.append(super().execute(batch))

    def _admit(self, block: int, data: NDArray[np.generic]) -> None:
        self._num_writes -= 1
        super().admit_block(block, data)


def engine_over(
    runner: ModelRunner, clock: Callable[[], float] | None = None, **limits: int
) -> Engine:
    config = EngineConfig(max_draft_tokens=0, **limits)
    steps = count(step=1e-6).__next__
    return Engine(runner, config, model_key=b"toy", clock=clock or steps)


class Given:
    """What a request was given: its answer, and the blocks that it exported."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.kv: list[KVBlock] = []
        self.begins = 0

    def holds(self) -> tuple[Any, ...]:
        blocks = [
            (block.digest, block.num_tokens, block.data[:, :, :, : block.num_tokens].tobytes())
            for block in self.kv
            if isinstance(block.data, np.ndarray)
        ]
        return self.answer, blocks, self.begins


def step_on(engine: Engine, given: dict[str, Given]) -> None:
    outputs = engine.step()
    assert len({output.request_id for output in outputs}) == len(outputs)
    for output in outputs:
        one = given[output.request_id]
        one.answer.add(output)
        one.kv += output.kv
        one.begins += output.begun is not None
    check_pool(engine.pool)


def undivided(one: Request) -> tuple[Any, ...]:
    """What a request is given alone, by a runner that does one step after the other."""
    engine, given = engine_over(ToyRunner(num_blocks=64)), {one.id: Given()}
    engine.add(one.sequence())
    while engine.has_work:
        step_on(engine, given)
    return given[one.id].holds()
