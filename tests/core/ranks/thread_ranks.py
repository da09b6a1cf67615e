"""Ranks of a model as threads of one process, over gloo: as they meet in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from skerry_core.batch import Float32, ForwardBatch
from skerry_core.models.sharding import Shard
from skerry_core.models.stages import ModelStage
from skerry_core.runner import WantedSizes
from skerry_core.runners.torch.opening import TorchOptions, load
from skerry_core.runners.torch.rank_links import RankLinks
from skerry_core.runners.torch.torch_runner import TorchRunner

Made = TypeVar("Made")


class ThreadRanks:
    """What `teacher_forced` needs of a runner. Layers are cut at `stages`' ends."""

    def __init__(
        self, weights: Path, store: Path, *, tensor: int = 1, stages: Sequence[range],
        num_blocks: int, max_tokens: int = 512, **options: Any,
    ) -> None:  # fmt: skip
        self._tensor, self._num_stages = tensor, len(stages)
        self._threads = ThreadPoolExecutor(tensor * len(stages))
        chosen = TorchOptions.of(device="cpu", threads=1, **options)
        wanted = WantedSizes(
            num_blocks=num_blocks, max_step_tokens=max_tokens, max_samples=max_tokens
        )

        def open_rank(rank: int) -> TorchRunner:
            stage, part = divmod(rank, tensor)
            own = ModelStage(stages[stage].start, stages[stage].stop, stages[-1].stop)
            shard = Shard(stage=own, tensor_rank=part, tensor_size=tensor)
            loaded = load(weights, chosen, shard)
            links = RankLinks(store, shard, stage, len(stages), torch.device("cpu"))
            return TorchRunner.of(loaded, loaded.fitted(wanted), links=links)

        self.ranks = self._in_all(open_rank, range(tensor * len(stages)))

    def execute(self, batch: ForwardBatch) -> None:
        self._in_all(lambda rank: rank.launch(batch), self.ranks)

    def last_logits(self) -> Float32:
        """The same on all ranks of the last stage."""
        first, *others = [rank.last_logits() for rank in self.ranks[-self._tensor :]]
        assert all((other == first).all() for other in others)
        return first

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self._threads.shutdown()

    def _in_all(self, call: Callable[[Any], Made], arguments: Sequence[Any]) -> list[Made]:
        return list(self._threads.map(call, arguments))


def open_ranks(weights: Path, store: Path, **options: Any) -> Any:
    """Ranks, as what takes a runner may take them."""
    return ThreadRanks(weights, store, **options)
