"""Runs a Llama-like model on the CPU: packed int4 and int8 weights, one compiled call per step.

`kernels.cpu.decoder_step` is the step; this module owns its memory and its threads.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import ConfigError, KVFormat, ModelConfig
from skerry_core.kernels.cpu.decoder_step import run_thread
from skerry_core.kernels.cpu.step_memory import StepMemory
from skerry_core.kernels.simd import threads as team
from skerry_core.kernels.simd.memory import address
from skerry_core.kernels.simd.targets import Target, choose_target, name_of
from skerry_core.models.stages import ModelStage
from skerry_core.runner import Progress, RunnerSetup
from skerry_core.runners.checks import check_batch, check_block_data, check_blocks, check_finite
from skerry_core.runners.compilation import DECODER_KERNELS, kernel_version, link
from skerry_core.runners.kernel_cache import load_kernels
from skerry_core.runners.model_arrays import model_arrays
from skerry_core.runners.packing.packed import load_packed
from skerry_core.runners.packing.packed_file import PackedFile, PackedModel
from skerry_core.runners.page_ahead import PageAhead
from skerry_core.runners.team_size import TeamSize


class NumbaRunner:
    """`ModelRunner` on the CPU. Batch invariant, and the same bits on every CPU.

    One caller thread; `threads - 1` more work along with it, and sleep between bursts of steps.
    """

    batch_invariant = True

    def __init__(
        self,
        packed: PackedModel,
        target: Target,
        *,
        num_blocks: int,
        max_step_tokens: int,
        max_samples: int,
        threads: int,
    ) -> None:
        """The kernels must have been loaded, as `open` does."""
        sizes = {"num_blocks": num_blocks, "max_step_tokens": max_step_tokens}
        sizes |= {"max_samples": max_samples, "threads": threads}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, got {size}")
        if threads > team.MAX_THREADS:
            raise ConfigError(f"threads must be at most {team.MAX_THREADS}, got {threads}")
        self.model: ModelConfig = packed.config
        self.kv_format = kv_format_of(packed.config)
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.numeric_build = _numeric_build(packed, self.kv_format)
        self.stage = packed.stage
        self._packed = packed
        self._target = target
        self._sync = team.make_sync(threads)
        self._sync_at = address(self._sync)
        self._team_size = TeamSize(threads)
        self._step = StepMemory.allocate(
            packed.config,
            model_arrays(packed, num_blocks),
            self._sync,
            num_threads=threads,
            num_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            max_samples=max_samples if packed.stage.is_last else 1,  # no other has logits
        )
        self._page_ahead = PageAhead(self._step.kv)
        self._num_used = 0  # blocks, from the first one on
        self._wake_ups = [threading.Semaphore(0) for _ in range(threads)]
        self._workers: list[threading.Thread] = []
        self._num_sampled = 0
        self._is_closed = False

    @classmethod
    def open(
        cls,
        weights: Path,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        threads: int = 2,
        cache_dir: Path,
        target: str | None = None,
        floats: str | None = None,
        stage: ModelStage | None = None,
        file: PackedFile | None = None,
        progress: Progress = lambda message, share: None,
    ) -> NumbaRunner:
        """Load a model, or a stage of it alone, from a weight file; packed weights and compiled
        code go to `cache_dir`.

        `floats` says in what matrices of floats are kept ("keep", "q8_0", "q4_1", "q4_0"); by
        default those of safetensors as Q8_0. `target` names a kind of CPU (`targets.TARGETS`), the
        best for this one when None. `file` is what was packed of the weights for this CPU, where it
        has been found. Raises WeightsError for a bad file, ConfigError for what cannot run here,
        and CompilationError.
        """
        chosen = choose_target(target)
        has_kernels = threading.Event()

        def packing(what: str, share: float) -> None:
            if has_kernels.is_set():  # one thing at a time is reported
                progress(what, share)

        with ThreadPoolExecutor(1, "skerry-weights") as pool:
            loading = pool.submit(
                load_packed,
                weights,
                group_rows=chosen.rows,
                floats=floats,
                stage=stage,
                file=file,
                cache_dir=cache_dir,
                progress=packing,
            )
            load_kernels(DECODER_KERNELS, name_of(chosen), cache_dir, progress)
            has_kernels.set()
            packed = loading.result()
        return cls(
            packed,
            chosen,
            num_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            max_samples=max_samples,
            threads=threads,
        )

    @classmethod
    def from_setup(
        cls, setup: RunnerSetup, *, stage: ModelStage | None = None, file: PackedFile | None = None
    ) -> NumbaRunner:
        """Open a model, or a stage of it alone, as `open` does."""
        return cls.open(
            setup.weights,
            **asdict(setup.sizes.on_host()),
            threads=setup.threads,
            cache_dir=setup.cache_dir,
            floats=setup.floats,
            stage=stage,
            file=file,
            progress=setup.progress,
        )

    def warm_up(self, progress: Progress) -> None:
        """Link the kernels and start the threads. Called again, does nothing."""
        if self._is_closed:
            raise RuntimeError("the runner is closed")
        if self._step.record["matmul"]:
            return
        link(self._step, self._target)
        self._page_ahead.start()
        for index in range(1, len(self._step.threads)):
            worker = threading.Thread(
                target=self._work, args=(index,), name=f"skerry-cpu-{index}", daemon=True
            )
            worker.start()
            self._workers.append(worker)

    def execute(self, batch: ForwardBatch) -> StepResult:
        """Run one step; see `ModelRunner`. Raises ValueError for a batch beyond its sizes."""
        return self.advance(batch, None)

    def hidden(self, count: int) -> Float32:
        """Return the hidden rows of the last step's first tokens, f32[count, hidden]: what the next
        stage goes on from. Valid until the next step."""
        return self._step.hidden[:count]

    def advance(self, batch: ForwardBatch, hidden: Float32 | None) -> StepResult:
        """Run one step of the stage, from the rows of the stage before, f32[T, hidden]; of a first
        stage None. A batch for a stage that is not last samples nothing."""
        if self._is_closed or not self._step.record["matmul"]:
            self.warm_up(lambda message, share: None)
        check_batch(batch, self)
        self._will_use(int(batch.block_tables.max()))
        if hidden is not None:
            self._step.hidden[: len(hidden)] = hidden
        result = self._step.set_batch(batch)
        self._num_sampled = len(batch.sample_tokens)
        if len(self._step.threads) == 1:  # a team of one has no thread to wake, or to do without
            run_thread(self._target, self._step.record, self._step.threads[0])
            return result
        threads = self._team_size.now
        self._step.record["num_threads"] = threads
        self._wake(team.begin_step(self._sync_at, threads))
        run_thread(self._target, self._step.record, self._step.threads[0])
        self._team_size.note(*team.step_seconds(self._sync))
        return result

    def last_logits(self) -> Float32:
        return self._step.logits[: self._num_sampled, : self.model.vocab_size]

    def export_block(self, block: int) -> NDArray[np.generic]:
        pages = self._pages(block)
        out = np.empty(self.kv_format.shape, np.float16)
        layers, _, heads, slots, dim = self.kv_format.shape
        out[:, 0] = pages[:, 0].reshape(layers, heads, dim, slots).swapaxes(2, 3)
        out[:, 1] = pages[:, 1].reshape(layers, heads, slots, dim)
        return out

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        """See `ModelRunner`. Raises ValueError also for values that are not finite."""
        check_block_data(data, self.kv_format)
        check_finite(data)
        self._will_use(block)
        pages = self._pages(block)
        pages[:, 0] = data[:, 0].swapaxes(2, 3).reshape(pages[:, 0].shape)
        pages[:, 1] = data[:, 1].reshape(pages[:, 1].shape)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._page_ahead.close()
        if self._workers:
            self._wake(team.stop_threads(self._sync_at, len(self._step.threads)))
        for worker in self._workers:
            worker.join()

    def _will_use(self, block: int) -> None:
        if block >= self._num_used:
            self._num_used = block + 1
            self._page_ahead.used(self._num_used * self.kv_format.block_bytes)

    def _pages(self, block: int) -> NDArray[np.float16]:
        """Return f16[L, 2, Hkv, 64 * D] of a block: K as [D, 64], V as [64, D]."""
        check_blocks([block], self.num_blocks)
        return self._step.kv[block].view(np.float16)

    def _work(self, index: int) -> None:
        thread = self._step.threads[index]
        while run_thread(self._target, self._step.record, thread) == team.PARKED:
            self._wake_ups[index].acquire()

    def _wake(self, parked: int) -> None:
        for index, wake_up in enumerate(self._wake_ups):
            if parked >> index & 1:
                wake_up.release()


def kv_format_of(config: ModelConfig) -> KVFormat:
    """Return what blocks of a model, or of a stage, are here."""
    return KVFormat(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim
    )


def _numeric_build(packed: PackedModel, kv_format: KVFormat) -> str:
    """Name the build. The CPU's kind is not part of it, nor are stages: all give the same bits."""
    parts = ("numba", kernel_version(), *packed.all_formats, kv_format.dtype)
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()
