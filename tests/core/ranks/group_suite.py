"""A group of Torch ranks whose others are threads of this process, over the node's own channels."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from tests.core.runners.runner_suite import Sizes

from skerry_core.ranks import Parallel, RankLost
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_core.runners.torch.torch_group import TorchGroup
from skerry_regions.node.ranks.channel import SocketChannel


class RankThreads:
    """`Ranks` in threads."""

    form = "in threads, as the test wants it"

    def __init__(self, *, deterministic: bool) -> None:
        self.threads: list[threading.Thread] = []
        self._deterministic = deterministic

    def start(self, setup: RunnerSetup) -> SocketChannel:
        ours, theirs = socket.socketpair()
        channel = SocketChannel(theirs, "the first rank")

        def run() -> None:
            try:
                TorchGroup.serve_rank(setup, channel, deterministic=self._deterministic)
            except Exception as error:
                channel.fail(f"{error}")
            finally:
                channel.close()

        thread = threading.Thread(target=run, name=f"rank {setup.rank}", daemon=True)
        thread.start()
        self.threads.append(thread)
        return SocketChannel(ours, f"rank {setup.rank}")

    def when_lost(self, call: Callable[[RankLost], None]) -> None:
        """Never: threads do not end so."""


def group_setup(weights: Path, parallel: Parallel, **sizes: Unpack[Sizes]) -> RunnerSetup:
    """Of a model on so many ranks, one thread each."""
    return RunnerSetup(
        weights=weights, vocab_size=1, max_context=1, sizes=WantedSizes(**sizes), threads=1,
        cache_dir=weights.parent, progress=lambda what, share: None, parallel=parallel,
    )  # fmt: skip


def open_group(
    weights: Path, *, tensor: int = 1, pipeline: int = 1, deterministic: bool = False,
    **sizes: Unpack[Sizes],
) -> TorchGroup:  # fmt: skip
    """A model on ranks of which the others are threads."""
    setup = group_setup(weights, Parallel(tensor=tensor, pipeline=pipeline), **sizes)
    ranks = RankThreads(deterministic=deterministic)
    return TorchGroup.from_setup(replace(setup, ranks=ranks), deterministic=deterministic)
