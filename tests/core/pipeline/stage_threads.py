"""Ranks of a pipeline as threads of the test's process, over channels of the node's own kind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from skerry_core.ranks import Parallel, RankLost
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_core.runners.pipeline.pipeline_runner import PipelineRunner
from skerry_regions.node.ranks.channel import SocketChannel


class StageThreads:
    """`Ranks` that starts each on a thread."""

    form = "in threads, as the test wants it"

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def start(self, setup: RunnerSetup) -> SocketChannel:
        ours, theirs = socket.socketpair()
        channel = SocketChannel(theirs, f"rank {setup.rank - 1}")

        def run() -> None:
            try:
                PipelineRunner.serve_rank(replace(setup, ranks=self), channel)
            except RankLost:  # closed
                channel.close()

        thread = threading.Thread(target=run, name=f"rank {setup.rank}", daemon=True)
        thread.start()
        self.threads.append(thread)
        return SocketChannel(ours, f"rank {setup.rank}")

    def when_lost(self, call: Callable[[RankLost], None]) -> None:
        pass


def open_pipeline(weights: Path, cache_dir: Path, stages: int, **sizes: int) -> PipelineRunner:
    """A model in so many stages, one thread each."""
    return PipelineRunner.from_setup(
        RunnerSetup(
            weights=weights, vocab_size=1, max_context=1, sizes=WantedSizes(**sizes), threads=1,
            cache_dir=cache_dir, progress=lambda what, share: None, floats="keep",
            parallel=Parallel(pipeline=stages), ranks=StageThreads(),
        )
    )  # fmt: skip
