"""A rank of Torch: how it is opened with the others, and what one does that is not first.

    first rank ── MEET, SIZES, WARM_UP, STEP, LOGITS, EXPORT, ADMIT ──▶ each other rank
    first rank ◀── SIZES, READY, WARM_UP, RESULT, LOGITS, EXPORT, ADMIT ── each other rank

Hidden states and sums go between ranks by `rank_links`, from device to device. What a step made
comes from one rank of the last stage, as soon as it is known: steps may be under way meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from skerry_core.kv.canonical import kv_dtype
from skerry_core.page_checksums import KVChecksumError
from skerry_core.ranks import Part, RankChannel, RankLost
from skerry_core.runner import RunnerSetup, RunnerSizes
from skerry_core.runners.rank_messages import (
    MessageKind,
    RankMessage,
    encode,
    expect,
    result_message,
    step_of,
)
from skerry_core.runners.torch.opening import TorchOptions, load
from skerry_core.runners.torch.rank_links import RankLinks
from skerry_core.runners.torch.rank_plan import RankPlan, plan_ranks, rank_options
from skerry_core.runners.torch.torch_runner import TorchRunner

logger = logging.getLogger(__name__)

Agree = Callable[[RunnerSizes], RunnerSizes]
"""Called with the sizes that a rank has room for; returns those that all have."""


def open_rank(
    setup: RunnerSetup, options: TorchOptions, plan: RankPlan, store: Path, agree: Agree
) -> tuple[TorchRunner, RankLinks]:
    """Open a rank's part of the model, once the others have come to `store`. Raises WeightsError,
    ConfigError, and RuntimeError where one does not come."""
    shard, stage = plan.shards[setup.rank], setup.rank // setup.parallel.tensor
    part = f"{shard.tensor_rank + 1} of {shard.tensor_size}"
    first, last = shard.stage.first, shard.stage.last - 1
    logger.info("rank %d has part %s of layers %d to %d", setup.rank, part, first, last)
    links = RankLinks(store, shard, stage, setup.parallel.pipeline, options.device)
    loaded = load(setup.weights, options, shard)
    sizes = agree(loaded.fitted(setup.sizes))
    return TorchRunner.of(loaded, sizes, links=links, formats=plan.formats), links


def serve_rank(setup: RunnerSetup, channel: RankChannel, *, deterministic: bool = False) -> None:
    """Run rank `setup.rank`, not the first, until the channel ends. Raises as `open_rank` does, and
    RankLost."""

    def agree(own: RunnerSizes) -> RunnerSizes:
        channel.send(*sizes_message(own))
        return sizes_of(RankMessage(channel.receive()))

    place = expect(RankMessage(channel.receive()), MessageKind.MEET).array(0, np.uint8)
    options = rank_options(setup, deterministic=deterministic)
    plan = plan_ranks(setup.weights, setup.parallel, options)
    channel.send(
        *encode(MessageKind.MEET)
    )  # it comes: the others need not wait for one that cannot
    runner, _ = open_rank(setup, options, plan, Path(place.tobytes().decode()), agree)
    worker = RankWorker(runner, channel, makes_results=_makes_results(setup, plan))
    channel.send(
        *encode(MessageKind.READY, [np.frombuffer(runner.numeric_build.encode(), np.uint8)])
    )
    try:
        while True:
            worker.handle(RankMessage(channel.receive()))
    finally:
        worker.close()


def sizes_message(sizes: RunnerSizes) -> list[Part]:
    counts = (sizes.num_blocks, sizes.max_step_tokens, sizes.max_samples)
    return encode(MessageKind.SIZES, [np.array(counts, np.int64)])


def sizes_of(message: RankMessage) -> RunnerSizes:
    """Return what `sizes_message` was made of. Raises RankLost."""
    counts = expect(message, MessageKind.SIZES).array(0, np.int64)
    if counts.shape != (3,) or counts.min() < 1:
        raise RankLost(f"sizes {counts.tolist()} came")
    blocks, tokens, samples = counts.tolist()
    return RunnerSizes(num_blocks=blocks, max_step_tokens=tokens, max_samples=samples)


def _makes_results(setup: RunnerSetup, plan: RankPlan) -> bool:
    """Return whether the first rank takes results from this one: it makes none itself."""
    shard = plan.shards[setup.rank]
    return shard.stage.is_last and not shard.stage.is_first and shard.tensor_rank == 0


class RankWorker:
    """What a rank does of each message. All answers are sent by one thread, in order."""

    def __init__(self, runner: TorchRunner, channel: RankChannel, *, makes_results: bool) -> None:
        self._runner = runner
        self._channel = channel
        self._makes_results = makes_results
        self._is_last = runner.is_last
        self._answers = ThreadPoolExecutor(1, thread_name_prefix="answers")

    def handle(self, message: RankMessage) -> None:
        """Do this rank's part of a message. Raises RankLost for what is none of work."""
        match message.kind:
            case MessageKind.STEP:
                self._step(message)
            case MessageKind.WARM_UP:
                self._runner.warm_up(lambda what, share: None)
                self._answer(lambda: encode(MessageKind.WARM_UP))
            case MessageKind.LOGITS:
                logits = self._runner.last_logits()
                self._answer(lambda: encode(MessageKind.LOGITS, [logits]))
            case MessageKind.EXPORT:
                data, checksums = self._runner.export_blocks(message.array(0, np.int32).tolist())
                sums = [] if checksums is None else [checksums]
                self._answer(lambda: encode(MessageKind.EXPORT, [data, *sums]))
            case _:
                self._admit(expect(message, MessageKind.ADMIT))

    def close(self) -> None:
        """End the thread, and free what the rank has."""
        self._answers.shutdown(wait=False)
        self._runner.close()

    def _step(self, message: RankMessage) -> None:
        self._runner.launch(step_of(message))
        if self._makes_results:
            sampled = self._runner.take()
            self._answer(lambda: result_message(sampled.result()))
        elif self._is_last:
            self._runner.take()

    def _admit(self, message: RankMessage) -> None:
        blocks, checksums = message.array(0, np.int32), message.array(1, np.uint64)
        data = message.array(2, kv_dtype(self._runner.kv_format.dtype))
        is_spoilt = False
        try:
            self._runner.admit_blocks(blocks.tolist(), data, checksums if len(checksums) else None)
        except KVChecksumError:
            is_spoilt = True
        self._answer(lambda: encode(MessageKind.ADMIT, [np.array([is_spoilt], np.uint8)]))

    def _answer(self, make: Callable[[], list[Part]]) -> None:
        def send() -> None:
            try:
                self._channel.send(*make())
            except BaseException:
                logger.exception("a rank cannot answer")
                self._channel.close()  # which ends it
                raise

        self._answers.submit(send)
