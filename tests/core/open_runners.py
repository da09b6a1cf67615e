"""Runners over a weight file, also with options that no node's setup has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry_core.ranks import Parallel
from skerry_core.runner import Progress, RunnerSetup, WantedSizes
from skerry_core.runners.torch.opening import TorchOptions, load
from skerry_core.runners.torch.torch_runner import TorchRunner

if TYPE_CHECKING:
    from skerry_core.runners.jax.jax_runner import JaxRunner


def setup_of(
    weights: Path, *, num_blocks: int | None = None, max_step_tokens: int | None = 512,
    max_samples: int | None = 64, threads: int = 2, cache_dir: Path | None = None,
    num_devices: int = 1, progress: Progress = lambda what, share: None,
) -> RunnerSetup:  # fmt: skip
    """What a node would open the file with."""
    sizes = WantedSizes(
        num_blocks=num_blocks, max_step_tokens=max_step_tokens, max_samples=max_samples
    )
    return RunnerSetup(
        weights=weights, vocab_size=1, max_context=1, sizes=sizes, threads=threads,
        cache_dir=cache_dir or weights.parent, progress=progress,
        parallel=Parallel(tensor=num_devices),
    )  # fmt: skip


def open_on_torch(
    weights: Path, *, num_blocks: int | None = None, max_step_tokens: int | None = 512,
    max_samples: int | None = 64, threads: int = 2, **options: Any,
) -> TorchRunner:  # fmt: skip
    """`options` are those of `TorchOptions.of`."""
    loaded = load(weights, TorchOptions.of(threads=threads, **options))
    sizes = WantedSizes(
        num_blocks=num_blocks, max_step_tokens=max_step_tokens, max_samples=max_samples
    )
    return TorchRunner.of(loaded, loaded.fitted(sizes))


def open_on_jax(weights: Path, **options: Any) -> JaxRunner:
    """`options` are those of `setup_of` and `JaxRunner.open`."""
    from skerry_core.runners.jax.jax_runner import JaxRunner

    own = {name: options.pop(name, None) for name in ("dtype", "attention", "chooses")}
    return JaxRunner.open(setup_of(weights, **options), **own)
