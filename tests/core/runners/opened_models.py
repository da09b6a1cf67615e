"""Small models on the disk, and runners over them."""

from __future__ import annotations

from pathlib import Path

from tests.core.runners.runner_suite import (
    KINDS,
    MODELS,
    LogitsOf,
    ToyReference,
    reference,
    write_model,
)

from skerry_core.runner import ModelRunner

NUM_BLOCKS = 24


class Models:
    """Small models on the disk, and runners over them, opened once: old blocks stay as they are."""

    def __init__(self, folder: Path) -> None:
        self._paths = {name: write_model(folder, name) for name in MODELS}
        self._references: dict[str, LogitsOf] = {"toy": ToyReference()}
        self._references |= {name: reference(path) for name, path in self._paths.items()}
        self._runners: dict[tuple[str, str, int], ModelRunner] = {}

    def reference(self, model: str) -> LogitsOf:
        return self._references[model]

    def runner(self, kind: str, model: str, number: int = 0) -> ModelRunner:
        key = kind, model, number
        if key not in self._runners:
            self._runners[key] = self.open(kind, model, num_blocks=NUM_BLOCKS)
        return self._runners[key]

    def open(
        self, kind: str, model: str, *, num_blocks: int, max_step_tokens: int = 512,
        max_samples: int = 512,
    ) -> ModelRunner:  # fmt: skip
        return KINDS[kind].open(
            self._paths.get(model, Path()), num_blocks=num_blocks,
            max_step_tokens=max_step_tokens, max_samples=max_samples,
        )  # fmt: skip

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()
