"""A runner that computes a step while the next one is prepared, one step behind."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from bench.subjects.requests import Request
from numpy.typing import NDArray
from tests.core.fed_histories import whole
from tests.core.toy_oracle import Answer, run

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runner import ModelRunner
from skerry_core.runners.toy import ToyRunner


class LaggingRunner(ToyRunner):
    """Does what it is told in order, but nothing before somebody needs it: as a GPU may."""

    steps_ahead, feeds = 1, True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self._waiting: deque[ForwardBatch] = deque()
        self._results: deque[StepResult] = deque()
        self._made = np.zeros(0, np.int32)

    def execute(self, batch: ForwardBatch) -> StepResult:
        raise AssertionError("it overlaps")

    def launch(self, batch: ForwardBatch) -> None:
        self.calls.append("launch")
        assert len(self._waiting) + len(self._results) < 2
        self._waiting.append(deepcopy(batch))

    def collect(self) -> StepResult:
        self.calls.append("collect")
        self._catch_up()
        return self._results.popleft()

    def export_block(self, block: int) -> NDArray[np.generic]:
        self._catch_up()
        return super().export_block(block)

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        self._catch_up()
        super().admit_block(block, data)

    def _catch_up(self) -> None:
        while self._waiting:
            batch = self._waiting.popleft()
            if batch.feeds is not None:
                places, samples = batch.feeds.T
                assert not batch.token_ids[places].any()
                batch.token_ids[places] = self._made[samples].clip(min=0)
            batch.sampling = whole(batch.sampling, self._made)
            result = super().execute(batch)
            self._made = result.token_ids
            self._results.append(result)


def engine_over(
    runner: ModelRunner, clock: Callable[[], float] = time.perf_counter, /, **limits: int
) -> Engine:
    config = EngineConfig(max_draft_tokens=0, **limits)
    return Engine(runner, config, model_key=b"toy", clock=clock)


def lagging(num_blocks: int = 64, **limits: int) -> Engine:
    return engine_over(LaggingRunner(num_blocks=num_blocks), **limits)


def answers(engine: Engine, requests: list[Request]) -> dict[str, Answer]:
    for each in requests:
        engine.add(each.sequence())
    return run(engine)
