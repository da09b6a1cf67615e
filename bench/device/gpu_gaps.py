"""Time in which a device has nothing to do between a runner's steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from skerry_core.batch import ForwardBatch
from skerry_core.runners import triton_steps
from skerry_core.runners.torch_gpu import TorchRunner


class Gaps:
    """From the end of each step to the next one's inputs, told by the device's own clock.

    Within a step the device may wait too, for kernels that are launched one by one.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._begun: list[Any] = []  # CUDA events, or seconds
        self._ended: list[Any] = []

    @contextmanager
    def between_steps(self, runner: TorchRunner) -> Generator[None]:
        """Watch the steps that are run in this context."""
        send, launch = triton_steps.send, runner.launch

        def watched_send(*arguments: Any, **options: Any) -> Any:
            self._begun.append(self._now())
            return send(*arguments, **options)

        def watched_launch(batch: ForwardBatch) -> None:
            launch(batch)
            self._ended.append(self._now())

        _set(triton_steps, "send", watched_send)
        _set(runner, "launch", watched_launch)
        try:
            yield
        finally:
            _set(triton_steps, "send", send)
            _set(runner, "launch", launch)

    @property
    def seconds(self) -> float:
        """All of them together; the device has ended the steps."""
        pairs = zip(self._ended, self._begun[1:], strict=False)
        return sum(max(self._between(end, begin), 0.0) for end, begin in pairs)

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, first: Any, second: Any) -> float:
        return first.elapsed_time(second) / 1e3 if self._is_cuda else second - first


def _set(owner: Any, name: str, value: Callable[..., Any]) -> None:
    setattr(owner, name, value)
