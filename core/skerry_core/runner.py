"""The contract between the engine and a device: one step of a model over paged KV.

An engine owns exactly one runner and calls it from one thread. Runners share the meaning of a
`ForwardBatch` and the canonical KV layout, and nothing else: a node may prefill on one kind and
another decode on a different one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import KVFormat, ModelConfig
from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.page_checksums import Checksums
from skerry_core.ranks import UNDIVIDED, Parallel, Ranks

Progress = Callable[[str, float], None]
"""Called with what is being done and the share done so far, 0 to 1."""


HOST_BLOCKS = 192  # of KV in a host's memory, where nothing is said: 12,288 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSizes:
    """How much a runner has room for."""

    num_blocks: int
    max_step_tokens: int = 512
    max_samples: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSizes:
    """What is said of a runner's sizes; None: as a device with memory of its own has room for, and
    elsewhere as usual."""

    num_blocks: int | None = None
    max_step_tokens: int | None = None
    max_samples: int | None = None
    host_blocks: int = HOST_BLOCKS  # where `num_blocks` is None, in a host's memory

    @property
    def leaves_nothing_open(self) -> bool:
        return None not in (self.num_blocks, self.max_step_tokens, self.max_samples)

    def on_host(self) -> RunnerSizes:
        """Return sizes of a runner in a host's memory."""
        usual = RunnerSizes(num_blocks=self.host_blocks)
        return RunnerSizes(
            num_blocks=self.num_blocks or usual.num_blocks,
            max_step_tokens=self.max_step_tokens or usual.max_step_tokens,
            max_samples=self.max_samples or usual.max_samples,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSetup:
    """What a node opens a runner of any kind with; each kind takes what it needs."""

    weights: Path
    vocab_size: int  # of a kind without weights, as is the next
    max_context: int  # tokens
    sizes: WantedSizes
    threads: int
    cache_dir: Path
    progress: Progress
    floats: str | None = None  # what matrices of floats are kept in; None, or by a name of the kind
    kv: str | None = None  # the same of KV
    parallel: Parallel = UNDIVIDED
    rank: int = 0  # of `parallel.num_ranks`
    ranks: Ranks | None = None  # what starts others; None: there are none to start


class ModelRunner(Protocol):
    """A model on a device, with `num_blocks` blocks of paged KV.

    `numeric_build` names everything that decides a token's bits: kernel version, weight format and
    KV format. Two runners with the same build give the same logits bit for bit when
    `batch_invariant`; otherwise only the distribution is close.
    """

    @property
    def model(self) -> ModelConfig: ...
    @property
    def kv_format(self) -> KVFormat: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def max_samples(self) -> int: ...
    @property
    def numeric_build(self) -> str: ...
    @property
    def batch_invariant(self) -> bool: ...

    def warm_up(self, progress: Progress) -> None:
        """Compile or load every kernel, so that the first request pays for none of it."""
        ...

    def execute(self, batch: ForwardBatch) -> StepResult:
        """Run one step: write KV, attend, sample. The result is valid until the next call."""
        ...

    def last_logits(self) -> Float32:
        """Return logits `f32[S, V]` of the last step before any sampling adjustment; for tests.

        Valid until the next `execute`.
        """
        ...

    def export_block(self, block: int) -> NDArray[np.generic]:
        """Copy of one block in canonical form: `kv_format.shape`, `kv_format.dtype`."""
        ...

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        """Overwrite one block from canonical form. Raises ValueError on another shape or dtype."""
        ...

    def close(self) -> None:
        """Release threads and memory. The runner is not used again."""
        ...


@runtime_checkable
class BlockMover(Protocol):
    """What a `ModelRunner` may do besides: move any number of blocks in one transfer. One that
    inherits it moves a block as one of them."""

    def export_block(self, block: int) -> NDArray[np.generic]:
        data: NDArray[np.generic] = self.export_blocks([block])[0][0]
        return data

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        self.admit_blocks([block], data[None])

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[np.generic], Checksums | None]:
        """Copy blocks as `export_block` does: [n, *kv_format.shape], and their checksums if they
        come out of a device's memory."""
        ...

    def admit_blocks(
        self,
        blocks: Sequence[int],
        data: NDArray[np.generic],
        checksums: Checksums | None = None,
    ) -> None:
        """Overwrite blocks as `admit_block` does. Raises KVChecksumError, and overwrites nothing,
        when not all have arrived as they were."""
        ...


@runtime_checkable
class PageMover(Protocol):
    """What a `ModelRunner` may do besides: move blocks between its KV and pages of its device,
    which other processes can read."""

    def open_pages(self, count: int) -> DevicePages:
        """Open pages for blocks of `kv_format`. From any thread. Raises OSError where there are
        none that others could read."""
        ...

    def export_pages(self, blocks: Sequence[int], pages: Sequence[DevicePage]) -> Checksums:
        """Copy each block into a page, whole when this returns; return their checksums."""
        ...

    def admit_pages(
        self, blocks: Sequence[int], pages: Sequence[DevicePage], checksums: Sequence[int]
    ) -> None:
        """Overwrite each block from a page, which need not last longer than the call. Raises
        KVChecksumError, and overwrites nothing, when any has another checksum."""
        ...


@runtime_checkable
class OverlappingRunner(Protocol):
    """What a `ModelRunner` may do besides: compute steps while the next ones are prepared.

    `execute` is `launch` and `collect`. Steps are computed, and collected, in the order of their
    launches: of two that write to one block the later writes later. Blocks that are exported were
    computed by steps that have been collected, or admitted, and need not wait for those under way;
    blocks that are admitted take their turn among the launches.
    """

    @property
    def steps_ahead(self) -> int:
        """Return how many steps may be under way when the oldest of them is waited for.

        0: none, as if it did not overlap. 1: one is computed while another is prepared,
        as on a GPU. A pipeline has work for all its stages from one less than they are on; the
        engine divides its streams among as many steps as may be launched by then.
        """
        ...

    @property
    def feeds(self) -> bool:
        """Return whether the tokens that a step makes can be the input of the next one, launched
        before they are known: each pair of `ForwardBatch.feeds` is the index of such a token, and
        that of the sample which it is, in the step launched just before. Then `steps_ahead` is at
        most 1."""
        ...

    def launch(self, batch: ForwardBatch) -> None:
        """Begin a step. The batch's arrays may be overwritten as soon as this returns."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest step under way. The result is valid until the next call."""
        ...


class OneByOne:
    """A `ModelRunner` as an `OverlappingRunner` of which no step is under way beside another."""

    steps_ahead, feeds = 0, False

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._batch: ForwardBatch | None = None

    def launch(self, batch: ForwardBatch) -> None:
        self._batch = batch

    def collect(self) -> StepResult:
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("no step is under way")
        return self._runner.execute(batch)
