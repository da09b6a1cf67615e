"""Runs a model on Torch over several ranks, each a process with a device: parts of its layers,
stages of them, or both.

The first rank runs in the caller's process and sends the others each step as it came; all run it at
once. Tokens are chosen by every rank of the last stage, of logits that all of them have, so that
they are on their devices for the next step; where one stage is all, they are known here too.

Blocks of KV leave and arrive in canonical form, gathered from all ranks: a model that is divided in
another way, or not at all, takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.kv.canonical import kv_dtype
from skerry_core.page_checksums import Checksums, KVChecksumError, check_pages, page_checksums
from skerry_core.runner import BlockMover, Progress, RunnerSetup, RunnerSizes
from skerry_core.runners.checks import check_admitted, check_batch, check_blocks
from skerry_core.runners.other_ranks import OtherRanks, RankAnswers
from skerry_core.runners.rank_messages import (
    MessageKind,
    RankMessage,
    encode,
    step_message,
)
from skerry_core.runners.torch.rank_links import RankLinks
from skerry_core.runners.torch.rank_plan import RankPlan, plan_ranks, rank_options, survey
from skerry_core.runners.torch.rank_worker import open_rank, serve_rank, sizes_message, sizes_of
from skerry_core.runners.torch.torch_runner import TorchRunner

_MOVED_BYTES = 256 << 20  # of KV at once: a message has a bound
_NO_CHECKSUMS = np.zeros(0, np.uint64)


class TorchGroup(BlockMover):
    """A `ModelRunner` over ranks, of which it is the first; not for two threads at once.

    Once a rank is lost every call raises RankLost, or what the library says of it.
    """

    def __init__(
        self, runner: TorchRunner, links: RankLinks, plan: RankPlan, others: OtherRanks
    ) -> None:
        """The other ranks have opened their parts; it owns all it gets."""
        self.model = plan.model
        self.kv_format = plan.kv_format
        self.num_blocks = runner.num_blocks
        self.max_step_tokens = runner.max_step_tokens
        self.max_samples = runner.max_samples
        self.numeric_build = runner.numeric_build
        self.batch_invariant = runner.batch_invariant
        self.ranks = others.ranks
        self.feeds = runner.is_last  # else what is made is on another rank
        num_stages = len({shard.stage for shard in plan.shards})
        self.steps_ahead = runner.steps_ahead if self.feeds else num_stages - 1
        self._runner = runner
        self._shards = plan.shards
        self._others = others
        first_of_last = next(i for i, shard in enumerate(plan.shards) if shard.stage.is_last)
        self._maker = None if runner.is_last else others.channels[first_of_last - 1]  # of results
        self._answers = RankAnswers()

    @classmethod
    def from_setup(cls, setup: RunnerSetup, *, deterministic: bool = False) -> TorchGroup:
        """Open a model's part of this process, and have `setup.ranks` start the others. Raises as
        `TorchRunner.from_setup` does, and RankLost."""
        with OtherRanks.started(setup) as others:

            def agree(own: RunnerSizes) -> RunnerSizes:
                theirs = (sizes_of(RankMessage(channel.receive())) for channel in others.channels)
                sizes = [own, *theirs]
                least = RunnerSizes(
                    num_blocks=min(each.num_blocks for each in sizes),
                    max_step_tokens=min(each.max_step_tokens for each in sizes),
                    max_samples=min(each.max_samples for each in sizes),
                )
                others.send(sizes_message(least))
                return least

            options = rank_options(setup, deterministic=deterministic)
            plan = plan_ranks(setup.weights, setup.parallel, options)
            others.meet()
            runner, links = open_rank(setup, options, plan, others.place, agree)
            # A GPU would wait for what a lost rank has not sent.
            others.wait_ready(runner.numeric_build, links.abort)
            return cls(runner, links, plan, others)

    survey = staticmethod(survey)
    serve_rank = staticmethod(serve_rank)

    def warm_up(self, progress: Progress) -> None:
        self._others.send(encode(MessageKind.WARM_UP))
        self._runner.warm_up(progress)
        for channel in self._others.channels:
            self._answers.of(channel, MessageKind.WARM_UP)

    def execute(self, batch: ForwardBatch) -> StepResult:
        self.launch(batch)
        return self.collect()

    def launch(self, batch: ForwardBatch) -> None:
        """See `OverlappingRunner`."""
        check_batch(batch, self)
        self._others.send(step_message(batch))
        self._runner.launch(batch)

    def collect(self) -> StepResult:
        """See `OverlappingRunner`."""
        if self._maker is None:
            result = self._runner.collect()
            self._others.check()
            return result
        return self._answers.result(self._maker)

    def last_logits(self) -> Float32:
        if self._maker is None:
            return self._runner.last_logits()
        self._maker.send(*encode(MessageKind.LOGITS))
        return self._answers.of(self._maker, MessageKind.LOGITS).array(0, np.float32)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[np.generic], Checksums | None]:
        """Gather blocks from all ranks; see `BlockMover`."""
        check_blocks(blocks, self.num_blocks)
        data = np.empty((len(blocks), *self.kv_format.shape), kv_dtype(self.kv_format.dtype))
        at_once, has_checksums = max(1, _MOVED_BYTES // self.kv_format.block_bytes), False
        for start in range(0, len(blocks), at_once):
            some = slice(start, start + at_once)
            has_checksums |= self._export(blocks[some], data[some])
        return data, page_checksums(data) if has_checksums else None

    def _export(self, blocks: Sequence[int], into: NDArray[np.generic]) -> bool:
        """Gather blocks; return whether checksums came with them, and were those of the bytes."""
        self._others.send(encode(MessageKind.EXPORT, [np.asarray(blocks, np.int32)]))
        own, checksums = self._runner.export_blocks(blocks)
        into[self._part(0)] = own
        if checksums is not None:
            check_pages(checksums, page_checksums(own))
        for rank, channel in enumerate(self._others.channels, 1):
            answer = self._answers.of(channel, MessageKind.EXPORT)
            part = answer.array(0, into.dtype)
            if checksums is not None:
                check_pages(answer.array(1, np.uint64), page_checksums(part))
            into[self._part(rank)] = part
        return checksums is not None

    def admit_blocks(
        self,
        blocks: Sequence[int],
        data: NDArray[np.generic],
        checksums: Checksums | None = None,
    ) -> None:
        """Hand every rank its part of blocks; see `BlockMover`. Where KVChecksumError is of one
        rank's device, others have overwritten theirs: the blocks hold nothing that can be used."""
        check_admitted(blocks, data, self.num_blocks, self.kv_format)
        if checksums is not None:
            check_pages(checksums, page_checksums(data))
        at_once = max(1, _MOVED_BYTES // self.kv_format.block_bytes)
        for start in range(0, len(blocks), at_once):
            some = slice(start, start + at_once)
            self._admit(blocks[some], data[some], has_checksums=checksums is not None)

    def _admit(
        self, blocks: Sequence[int], data: NDArray[np.generic], *, has_checksums: bool
    ) -> None:
        numbers = np.asarray(blocks, np.int32)
        parts = [np.ascontiguousarray(data[self._part(i)]) for i in range(len(self._shards))]
        sums = [page_checksums(part) if has_checksums else _NO_CHECKSUMS for part in parts]
        channels = self._others.channels
        for channel, part, checksums in zip(channels, parts[1:], sums[1:], strict=True):
            self._others.check()
            channel.send(*encode(MessageKind.ADMIT, [numbers, checksums, part]))
        self._runner.admit_blocks(blocks, parts[0], sums[0] if has_checksums else None)
        answers = [self._answers.of(channel, MessageKind.ADMIT) for channel in channels]
        if any(answer.array(0, np.uint8).any() for answer in answers):
            raise KVChecksumError("KV blocks were spoilt on their way to a rank's device")

    def _part(self, rank: int) -> tuple[slice, ...]:
        """Return where a rank's part lies in blocks, [n, *kv_format.shape]."""
        stage, heads = self._shards[rank].stage, self._shards[rank].kv_heads(self.model)
        whole = slice(None)
        return whole, slice(stage.first, stage.last), whole, slice(heads.start, heads.stop)

    def close(self) -> None:
        self._others.close()
        self._runner.close()
