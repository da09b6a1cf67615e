"""What a step launches, as a GPU would be given it: recorded in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

_FREE = {
    "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "lift_fresh",
    "new_empty", "permute", "select", "slice", "split", "t", "transpose", "unsqueeze", "view",
    "_reshape_alias", "_unsafe_view", "new_empty_strided", "reshape", "resolve_conj", "resolve_neg",
    "to",
}  # fmt: skip
"""Operations that launch nothing: views, memory without values, and what is made of others."""


class _Operations(TorchDispatchMode):
    def __init__(self, launched: list[str]) -> None:
        super().__init__()
        self.launched = launched

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        if name not in _FREE:
            self.launched.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def launches(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Record launches, in their order: Triton's kernels and Torch's operations by name."""
    launched: list[str] = []
    run = InterpretedFunction.run

    def recorded(kernel: Any, *args: Any, **options: Any) -> Any:
        launched.append(kernel.__name__)
        before = len(launched)
        result = run(kernel, *args, **options)
        del launched[before:]  # the interpreter's own
        return result

    with monkeypatch.context() as patches, _Operations(launched):
        patches.setattr(InterpretedFunction, "run", recorded)
        yield launched


class StubGraph:
    """A captured graph: the steps that were run while it was, each of which runs again."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.replay: Callable[[], None] = lambda: None


class StubStream:
    def __init__(self, device: object) -> None: ...

    def wait_stream(self, other: object) -> None: ...


@contextmanager
def captured(monkeypatch: pytest.MonkeyPatch, steps: Any, launched: list[str]) -> Generator[None]:
    """Have `TritonSteps` capture and replay, each as one launch, as if on a GPU."""
    run, capturing = steps._run, list[StubGraph]()

    def recorded(*arguments: Any) -> None:
        if capturing:  # nothing runs meanwhile
            capturing[-1].steps.append(arguments)
        else:
            run(*arguments)

    def replay(graph: StubGraph) -> None:
        before = len(launched)
        for arguments in graph.steps:
            run(*arguments)
        launched[before:] = ["replay"]

    @contextmanager
    def capture(
        graph: StubGraph, *, pool: object, stream: StubStream, capture_error_mode: str
    ) -> Generator[None]:
        assert capture_error_mode == "thread_local"  # else any thread's copy would end it
        launched.append("capture")
        graph.replay = partial(replay, graph)
        capturing.append(graph)
        yield
        capturing.pop()

    with monkeypatch.context() as patches:
        patches.setattr(steps, "_is_captured", True)
        patches.setattr(steps, "_run", recorded)
        for name, value in {
            "Stream": StubStream, "current_stream": StubStream, "graph": capture,
            "CUDAGraph": StubGraph, "graph_pool_handle": object, "stream": nullcontext,
        }.items():  # fmt: skip
            patches.setattr(torch.cuda, name, value)
        yield
