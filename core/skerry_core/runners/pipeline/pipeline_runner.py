"""Runs a model in stages of layers over several processes, or machines, on our CPU kernels.

The first stage runs in the caller's process, on its thread: a step that is launched has gone
through it and is on its way, so the next may be launched while the later stages work. All stages
together compute what one process would, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import KVFormat, ModelConfig
from skerry_core.models.stages import ModelStage
from skerry_core.page_checksums import Checksums, check_pages, page_checksums
from skerry_core.ranks import RankChannel, Ranks
from skerry_core.runner import BlockMover, Progress, RunnerSetup
from skerry_core.runners.checks import check_admitted, check_batch, check_blocks, check_finite
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_core.runners.other_ranks import RankAnswers
from skerry_core.runners.pipeline.opening import (
    find_weights,
    open_stage,
    plan_stages,
    survey,
)
from skerry_core.runners.pipeline.section import Section, measured, serve_section
from skerry_core.runners.rank_messages import MessageKind, RankMessage, encode, expect


class PipelineRunner(BlockMover):
    """`ModelRunner` over several ranks; one caller thread. Batch invariant, of one build with the
    model in one process: blocks of KV are interchangeable."""

    batch_invariant = True
    feeds = False  # tokens are chosen on the last stage, and embedded on the first

    def __init__(
        self,
        runner: NumbaRunner,
        below: RankChannel,
        ranks: Ranks,
        *,
        model: ModelConfig,
        stages: Sequence[ModelStage],
        max_samples: int,
    ) -> None:
        """`runner` runs the first of the stages; ranks that run the others are ready."""
        own = runner.kv_format
        self.model: ModelConfig = model
        self.kv_format: KVFormat = replace(own, num_layers=model.num_layers)
        self.num_blocks = runner.num_blocks
        self.max_step_tokens = runner.max_step_tokens
        self.max_samples = max_samples
        self.numeric_build = runner.numeric_build
        self.ranks = ranks
        self.stages = tuple(stages)
        self.steps_ahead = len(stages) - 1
        self._section = Section(runner, below)
        self._below = below
        self._answers = RankAnswers()
        self._is_closed = False

    @classmethod
    def from_setup(cls, setup: RunnerSetup) -> PipelineRunner:
        """Open a model's first stage, and have `setup.ranks` start the others.

        Raises as `NumbaRunner.open` does, and RankLost.
        """
        assert setup.ranks is not None
        below = setup.ranks.start(replace(setup, rank=1))
        try:
            return cls._opened(setup, below, setup.ranks)
        except BaseException:
            below.close()
            raise

    @classmethod
    def _opened(cls, setup: RunnerSetup, below: RankChannel, ranks: Ranks) -> PipelineRunner:
        file = find_weights(setup)
        header = file.header
        paces, _ = measured(setup, file, below)
        stages = plan_stages(header, paces)
        starts = np.array([stage.first for stage in stages[1:]], np.int32)
        below.send(*encode(MessageKind.PLAN, [starts]))
        runner = open_stage(setup, stages[0], file)
        expect(RankMessage(below.receive()), MessageKind.READY)
        return cls(
            runner,
            below,
            ranks,
            model=header.config,
            stages=stages,
            max_samples=setup.sizes.on_host().max_samples,
        )

    survey = staticmethod(survey)
    serve_rank = staticmethod(serve_section)

    def warm_up(self, progress: Progress) -> None:
        """Do nothing more: all ranks have linked their kernels."""
        if self._is_closed:
            raise RuntimeError("the runner is closed")

    def execute(self, batch: ForwardBatch) -> StepResult:
        """Run one step; see `ModelRunner`. Raises ValueError for a batch beyond its sizes, and
        RankLost."""
        self.launch(batch)
        return self.collect()

    def launch(self, batch: ForwardBatch) -> None:
        """Run a step's first stage and send it on; see `OverlappingRunner`."""
        check_batch(batch, self)
        self._section.step(batch, None)

    def collect(self) -> StepResult:
        """Wait for the oldest step under way; see `OverlappingRunner`."""
        return self._answers.result(self._below)

    def last_logits(self) -> Float32:
        self._below.send(*encode(MessageKind.LOGITS))
        return self._answers.of(self._below, MessageKind.LOGITS).array(0, np.float32)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[np.generic], Checksums | None]:
        """Gather blocks from all ranks; see `BlockMover`."""
        check_blocks(blocks, self.num_blocks)
        self._below.send(*encode(MessageKind.EXPORT, [np.asarray(blocks, np.int32)]))
        own = self._section.export(blocks)
        answer = self._answers.of(self._below, MessageKind.EXPORT)
        parts = [answer.array(index, np.float16) for index in range(1, len(answer))]
        return np.concatenate([own, *parts], axis=1), None

    def admit_blocks(
        self,
        blocks: Sequence[int],
        data: NDArray[np.generic],
        checksums: Checksums | None = None,
    ) -> None:
        """Hand every rank its layers of blocks; see `BlockMover`."""
        check_admitted(blocks, data, self.num_blocks, self.kv_format)
        check_finite(data)
        if checksums is not None:
            check_pages(checksums, page_checksums(data))
        self._section.admit(blocks, data.view(np.float16))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._below.close()
            self._section.runner.close()
