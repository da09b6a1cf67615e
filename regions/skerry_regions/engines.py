"""Engines by kind of runner. Each kind's libraries are imported when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from skerry_core.config import ConfigError, EngineConfig
from skerry_core.engine import Engine
from skerry_core.runners.base import ModelRunner, Progress
from skerry_regions.catalog import ModelSpec
from skerry_regions.model_files import ModelFiles

RunnerKind = Literal["numba", "torch", "jax", "toy"]


def open_engine(
    spec: ModelSpec,
    files: ModelFiles,
    *,
    runner: RunnerKind,
    num_blocks: int,
    threads: int,
    cache_dir: Path,
    progress: Progress,
) -> Engine:
    """A model on a runner, its kernels compiled. Raises ConfigError or WeightsError."""
    opened = _open_runner(spec, files, runner, num_blocks, threads, cache_dir, progress)
    opened.warm_up(progress)
    return Engine(opened, EngineConfig(), model_key=files.model_key)


def _open_runner(
    spec: ModelSpec,
    files: ModelFiles,
    kind: RunnerKind,
    num_blocks: int,
    threads: int,
    cache_dir: Path,
    progress: Progress,
) -> ModelRunner:
    try:
        match kind:
            case "toy":
                from skerry_core.runners.toy import ToyRunner

                return ToyRunner(
                    num_blocks=num_blocks,
                    vocab_size=files.vocab_size,
                    max_context=spec.context_window,
                )
            case "numba":
                from skerry_core.runners.numba_cpu import NumbaRunner

                return NumbaRunner.open(
                    files.weights,
                    num_blocks=num_blocks,
                    threads=threads,
                    cache_dir=cache_dir,
                    progress=progress,
                )
            case "torch":
                import torch

                from skerry_core.runners.torch_gpu import TorchRunner

                torch.set_num_threads(threads)
                return TorchRunner.open(files.weights, num_blocks=num_blocks)
            case "jax":
                from skerry_core.runners.jax_xla import JaxRunner

                return JaxRunner.open(files.weights, num_blocks=num_blocks, cache_dir=cache_dir)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the {kind} runner needs {error.name}: pip install 'skerry[{_EXTRAS[kind]}]'"
        ) from None


_EXTRAS = {"numba": "core", "toy": "core", "torch": "torch", "jax": "jax"}
