"""Engines by kind of runner. Each kind's libraries are imported when it is asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skerry_core.config import ConfigError, EngineConfig
from skerry_core.encoder.encoder import Encoder
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import open_file
from skerry_core.kv.file_tier import FileTier, FileTierError
from skerry_core.runner import ModelRunner, Progress
from skerry_core.weights.tensors import WeightsError
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.model_files import ModelFiles

logger = logging.getLogger(__name__)

RunnerKind = Literal["numba", "torch", "torch-deterministic", "jax", "toy"]


@dataclass(frozen=True, slots=True)
class FileTierOptions:
    """Where evicted KV goes, and how many bytes of it at most."""

    path: Path
    capacity_bytes: int


def open_engine(
    spec: ModelSpec,
    files: ModelFiles,
    *,
    runner: RunnerKind,
    num_blocks: int,
    threads: int,
    cache_dir: Path,
    file_tier: FileTierOptions | None = None,
    progress: Progress,
) -> Engine:
    """A model on a runner, its kernels compiled. Raises ConfigError or WeightsError.

    A file tier that cannot be used is a warning: it is a cache.
    """
    opened = _open_runner(spec, files, runner, num_blocks, threads, cache_dir, progress)
    opened.warm_up(progress)
    file = None if file_tier is None else _open_file(opened, files.model_key, file_tier)
    return Engine(opened, EngineConfig(), model_key=files.model_key, file_tier=file)


def open_encoder(spec: ModelSpec, files: ModelFiles, *, threads: int, cache_dir: Path) -> Encoder:
    """A model that embeds or classifies, on the CPU; the first request has its kernels compiled.

    Raises ConfigError, or WeightsError for files that are not what the catalog says.
    """
    encoder = Encoder.open(files.weights, threads=threads, cache_dir=cache_dir)
    config = encoder.config
    if spec.embedding is not None and spec.embedding.dimensions != config.hidden_size:
        raise WeightsError(f"{spec.id}: the catalog's dimensions are not {config.hidden_size}")
    if spec.classification is not None:
        stated, found = len(spec.classification.labels), encoder.num_classes
        if stated != found:
            raise WeightsError(f"{spec.id}: the catalog has {stated} labels, the model {found}")
    if spec.context_window > config.max_tokens:
        raise WeightsError(
            f"{spec.id}: the catalog's context window of {spec.context_window} tokens is more "
            f"than the {config.max_tokens} of the model"
        )
    return encoder


def _open_file(runner: ModelRunner, model_key: bytes, options: FileTierOptions) -> FileTier | None:
    try:
        return open_file(
            options.path, runner, model_key=model_key, capacity_bytes=options.capacity_bytes
        )
    except FileTierError as error:
        logger.warning("evicted KV is not kept: %s", error)
        return None


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
            case "torch" | "torch-deterministic":
                from skerry_core.runners.torch_gpu import TorchRunner

                return TorchRunner.open(
                    files.weights,
                    num_blocks=num_blocks,
                    threads=threads,
                    deterministic=kind == "torch-deterministic",
                )
            case "jax":
                from skerry_core.runners.jax_xla import JaxRunner

                return JaxRunner.open(
                    files.weights,
                    num_blocks=num_blocks,
                    threads=threads,
                    cache_dir=cache_dir,
                    progress=progress,
                )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the {kind} runner needs {error.name}: pip install 'skerry[{_EXTRAS[kind]}]'"
        ) from None


_EXTRAS: dict[RunnerKind, str] = {
    "numba": "core",
    "torch": "torch",
    "torch-deterministic": "torch",
    "jax": "jax",
    "toy": "core",
}
