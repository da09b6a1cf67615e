"""What goes between the ranks of a model, over process groups of `torch.distributed`: NCCL where
each has a GPU, gloo on a CPU.

Ranks of a stage share its layers and sum what each makes of them; each sends hidden states to its
like in the next stage. Groups are made of a store, beside the library's one default group: a
process may lead several models.

The default sum is the library's: fast, in an order of its own. The invariant one gathers what all
ranks have and sums it in their order, on each of them: a token's bits depend on nothing else.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional

from skerry_core.kernels.torch.torch_ops import Ops
from skerry_core.models.sharding import Shard

_C10D: Any = distributed  # its process groups have types in part
TIMEOUT = timedelta(minutes=3)  # of a rank that lives and does not come: a dead one is seen at once
_LOOPBACK = "127.0.0.1"  # ranks are processes of one machine
_MOST_SENT = 4  # hidden states on their way to the next stage


class RankLinks:
    """A rank's way to the others. Not for two threads at once, but for `abort`."""

    def __init__(
        self, store: Path, shard: Shard, stage: int, num_stages: int, device: torch.device
    ):
        """Wait for the other ranks, which must come; `store` is a file that all of them see."""
        self.shard = shard
        self._device = device
        self._sent: deque[tuple[Any, Tensor]] = deque()
        self._stage = stage
        size, number = shard.tensor_size, shard.tensor_rank
        self._tensor = self._pipeline = None
        if size > 1:
            name, rank = f"{store}-stage{stage}", number
            self._tensor = _group(name, rank, size, device)
        if num_stages > 1:
            self._pipeline = _group(f"{store}-part{number}", stage, num_stages, device)

    def ops(self, ops: Ops, vocab_size: int, *, is_invariant: bool) -> Ops:
        """Return operations of which some are done together by the ranks of this stage."""
        if self._tensor is None:
            return ops

        def gather(x: Tensor) -> Tensor:
            each = -(-vocab_size // self.shard.tensor_size)
            padded = functional.pad(x, (0, each - x.shape[-1]))
            whole = self._gathered(padded).movedim(0, 1).flatten(1)
            return whole[:, :vocab_size].contiguous()  # kernels read row after row

        return replace(ops, reduce=self._sum_in_order if is_invariant else self._sum, gather=gather)

    def receive(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> Tensor | None:
        """Return hidden states [T, hidden] of the stage before; None: this is the first."""
        if self._pipeline is None or self.shard.stage.is_first:
            return None
        arrived = torch.empty((num_tokens, hidden_size), dtype=dtype, device=self._device)
        self._pipeline.recv([arrived], self._stage - 1, 0).wait()
        return arrived

    def send(self, hidden: Tensor) -> None:
        """Send hidden states to the next stage, without waiting until it takes them."""
        assert self._pipeline is not None
        if self._device.type == "cuda":
            hidden = hidden.clone()  # a graph's next replay overwrites them
        if len(self._sent) == _MOST_SENT:
            self._sent.popleft()[0].wait()
        self._sent.append((self._pipeline.send([hidden], self._stage + 1, 0), hidden))

    def abort(self) -> None:
        """End what waits for other ranks, with an error. From any thread."""
        for group in (self._tensor, self._pipeline):
            if group is not None:
                group.abort()

    def _sum(self, x: Tensor) -> Tensor:
        assert self._tensor is not None
        x = x.contiguous()
        self._tensor.allreduce([x]).wait()
        return x

    def _sum_in_order(self, x: Tensor) -> Tensor:
        total, *others = self._gathered(x).float()
        for other in others:
            total = total + other
        return total.to(x.dtype)

    def _gathered(self, x: Tensor) -> Tensor:
        """Return what each rank has, [ranks, *x.shape]."""
        assert self._tensor is not None
        all_of_them = x.new_empty((self.shard.tensor_size, *x.shape))
        if x.numel():
            self._tensor._allgather_base(all_of_them.view(-1), x.reshape(-1)).wait()
        return all_of_them


def _group(store: str, rank: int, size: int, device: torch.device) -> Any:
    shared = _C10D.FileStore(store, size)
    if device.type == "cuda":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        options = _C10D.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return _C10D.ProcessGroupNCCL(shared, rank, size, options)
    options = _C10D.ProcessGroupGloo._Options()
    options._devices = [_C10D.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    options._timeout = TIMEOUT
    return _C10D.ProcessGroupGloo(shared, rank, size, options)
