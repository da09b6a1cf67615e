"""Nothing in a step waits for the device: the host goes on to plan the next one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.paged_kv import DEVICE
from tests.core.runners.hand_batches import Piece, batch_of
from tests.core.triton.triton_runners import open_runner
from torch.utils._python_dispatch import TorchDispatchMode

from skerry_core.batch import ForwardBatch

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

pytest.importorskip("triton")

_WAITING = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim"}
"""Operations whose result, or its shape, the host must know."""


class NothingIsRead(TorchDispatchMode):
    """Refuses what would wait for a GPU, on a CPU, where it does not."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        masks = args[1] if name in ("index", "index_put", "index_put_") else ()
        is_masked = any(mask is not None and mask.dtype is torch.bool for mask in masks)
        assert name not in _WAITING, f"{name} waits for the device"
        assert not is_masked, f"{name} by a mask waits for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_is_read() -> Generator[None]:
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    else:
        with NothingIsRead():
            yield


def styled(batch: ForwardBatch) -> ForwardBatch:
    """Sampled with penalties, biases and logprobs, of which each needs something of the host."""
    s, count = batch.sampling, batch.num_samples
    s.samples["temperature"], s.samples["top_p"] = 0.9, 0.9
    s.samples["top_k"], s.samples["min_p"] = 40, 0.01
    s.samples["typical_p"] = 0.8
    s.samples["repetition_penalty"], s.samples["presence_penalty"] = 1.2, 0.5
    ones, every = np.ones(count, np.int32), np.arange(count + 1, dtype=np.int32)
    s.history_start, s.history_ids, s.history_counts = every, ones, ones
    s.bias_start, s.bias_ids, s.bias_values = every, ones, ones.astype(np.float32)
    s.samples["num_logprobs"] = 2
    return batch


def test_steps_are_launched_without_waiting(models: dict[str, Path]) -> None:
    """One with a chunk, and one that only decodes what that made."""
    runner = open_runner(models["qwen2"], num_blocks=4, max_samples=2)
    prefill = batch_of(Piece([5, 9], 0, [2]))
    decode = styled(batch_of(Piece([0], 2, [2])))
    decode.feeds = np.array([[0, 1]], np.int32)
    if DEVICE.type == "cuda":  # compiling and capturing wait
        for batch in (prefill, decode):
            runner.execute(batch)
    with nothing_is_read():
        runner.launch(prefill)
        runner.launch(decode)
    assert [len(runner.collect().token_ids) for _ in range(2)] == [2, 1]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="shows that the CPU's stand-in sees")
def test_what_waits_is_seen() -> None:
    x = torch.ones(3)
    for wait in (lambda: x.sum().item(), lambda: bool(x[0]), lambda: x[x > 0], x.nonzero):
        with pytest.raises(AssertionError, match="waits for the device"), NothingIsRead():
            wait()
