"""Runs a Llama-like model on the CPU: packed int4 and int8 weights, one compiled call per step.

`kernels.llama_step` is the step; this module owns its memory and its threads.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Batch, Float32, StepResult
from skerry_core.config import ConfigError, KVFormat, ModelConfig
from skerry_core.kernels.cpu.llama_step import run_thread
from skerry_core.kernels.cpu.plan import ModelArrays, Plan, address, matrix_record
from skerry_core.kernels.cpu.rope_tables import rope_tables
from skerry_core.kernels.simd import threads as team
from skerry_core.kernels.simd.targets import Target, choose_target, name_of
from skerry_core.models import llama
from skerry_core.runner import Progress
from skerry_core.runners.checks import check_batch, check_block, check_block_data
from skerry_core.runners.compilation import DECODER_KERNELS, kernel_version, link
from skerry_core.runners.kernel_cache import load_kernels
from skerry_core.runners.packed import PackedModel, load_packed
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
        self.kv_format = KVFormat(
            num_layers=packed.config.num_layers,
            num_kv_heads=packed.config.num_kv_heads,
            head_dim=packed.config.head_dim,
        )
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.numeric_build = _numeric_build(packed, self.kv_format)
        self._packed = packed
        self._target = target
        self._sync = team.make_sync(threads)
        self._team_size = TeamSize(threads)
        self._plan = Plan.allocate(
            packed.config,
            _model_arrays(packed),
            self._sync,
            num_threads=threads,
            num_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            max_samples=max_samples,
        )
        self._page_ahead = PageAhead(self._plan.kv)
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
        quantizes: bool = True,
        progress: Progress = lambda message, share: None,
    ) -> NumbaRunner:
        """Load a model from a weight file; packed weights and compiled code go to `cache_dir`.

        With `quantizes` the floats of safetensors are kept as Q8_0. `target` names a kind of CPU
        (`targets.TARGETS`), the best for this one when None. Raises WeightsError for a bad file,
        ConfigError for what cannot run here, and CompilationError.
        """
        chosen = choose_target(target)
        has_kernels = threading.Event()

        def packing(what: str, share: float) -> None:
            if has_kernels.is_set():  # one thing at a time is told
                progress(what, share)

        with ThreadPoolExecutor(1, "skerry-weights") as pool:
            loading = pool.submit(
                load_packed,
                weights,
                group_rows=chosen.rows,
                quantizes=quantizes,
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

    def warm_up(self, progress: Progress) -> None:
        """Link the kernels and start the threads. Called again, does nothing."""
        if self._is_closed:
            raise RuntimeError("the runner is closed")
        if self._plan.record["matmul"]:
            return
        link(self._plan, self._target)
        self._page_ahead.start()
        for index in range(1, len(self._plan.threads)):
            worker = threading.Thread(
                target=self._work, args=(index,), name=f"skerry-cpu-{index}", daemon=True
            )
            worker.start()
            self._workers.append(worker)

    def execute(self, batch: Batch) -> StepResult:
        """Run one step; see `ModelRunner`. Raises ValueError for a batch beyond its sizes."""
        self.warm_up(lambda message, share: None)
        check_batch(batch, self)
        self._will_use(int(batch.block_tables.max()))
        result = self._plan.set_batch(batch)
        threads = self._team_size.now
        self._plan.record["num_threads"] = threads
        self._wake(team.begin_step(address(self._sync), threads))
        run_thread(self._target, self._plan.record, self._plan.threads[0])
        self._team_size.note(*team.step_seconds(self._sync))
        self._num_sampled = batch.num_samples
        return result

    @property
    def kv_blocks_read(self) -> int:
        """Blocks of KV that the last step's attention read, each counted as often as it was."""
        return int(self._plan.attention_totals[1])

    def last_logits(self) -> Float32:
        return self._plan.logits[: self._num_sampled, : self.model.vocab_size]

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
        if (data.view(np.uint16) & 0x7C00 == 0x7C00).any():  # faster than isfinite on halves
            raise ValueError("a block of KV must be finite")
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
            self._wake(team.stop_threads(address(self._sync), len(self._plan.threads)))
        for worker in self._workers:
            worker.join()

    def _will_use(self, block: int) -> None:
        self._page_ahead.used((block + 1) * self.kv_format.block_bytes)

    def _pages(self, block: int) -> NDArray[np.float16]:
        """f16[L, 2, Hkv, 64 * D] of a block: K as [D, 64], V as [64, D]."""
        check_block(block, self.num_blocks)
        return self._plan.kv[block].view(np.float16)

    def _work(self, index: int) -> None:
        thread = self._plan.threads[index]
        while run_thread(self._target, self._plan.record, thread) == team.PARKED:
            self._wake_ups[index].acquire()

    def _wake(self, parked: int) -> None:
        for index, wake_up in enumerate(self._wake_ups):
            if parked >> index & 1:
                wake_up.release()


def _model_arrays(packed: PackedModel) -> ModelArrays:
    config = packed.config

    def matrix(name: str) -> NDArray[np.void]:
        return matrix_record(packed.layouts[name], address(packed.data) + packed.offsets[name])

    def of_layers(names: tuple[str, ...], kind: str) -> list[str]:
        layers = range(config.num_layers)
        return [llama.layer_tensor(layer, name, kind) for layer in layers for name in names]

    norms = [packed.vector(name) for name in of_layers(llama.LAYER_NORMS, "weight")]
    norms.append(packed.vector(llama.FINAL_NORM))
    biases = np.empty(0, np.float32)
    if config.attention_bias:
        names = of_layers(llama.LAYER_BIASES, "bias")
        biases = np.concatenate([packed.vector(name) for name in names])
    head_norms = np.empty(0, np.float32)
    if config.qk_norm:
        names = of_layers(llama.HEAD_NORMS, "weight")
        head_norms = np.concatenate([packed.vector(name) for name in names])
    cosines, sines = rope_tables(config)
    return ModelArrays(
        layers=np.concatenate([matrix(n) for n in of_layers(llama.LAYER_MATRICES, "weight")]),
        embedding=matrix(llama.EMBEDDING),
        head=matrix(llama.EMBEDDING if config.tied_embeddings else llama.HEAD),
        norms=np.stack(norms),
        biases=biases,
        head_norms=head_norms,
        cosines=cosines,
        sines=sines,
    )


def _numeric_build(packed: PackedModel, kv_format: KVFormat) -> str:
    """The CPU's kind is not part of it: all kinds give the same bits."""
    parts = ("numba", kernel_version(), *packed.formats, kv_format.dtype)
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()
