"""Runs a model with JAX: XLA on a CPU, GPU or TPU, one compiled program per bucket of shapes.

A step is cut into calls of few shapes (see `jax_calls`), so that some twenty programs serve every
batch; `warm_up` compiles them all, and they are kept on disk between starts. States of samples and
their logits stay on the device. On a CPU, where XLA is slower at it, tokens are chosen by the
numba kernel; elsewhere on the device, and a step is computed while the next one is prepared
(`jax_sampler`). Both are equal to `skerry_core.sampling` bit for bit.

XLA chooses its products by shape, so bits depend on the buckets: `batch_invariant` is False.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import ConfigError, KVDtype, KVFormat, ModelConfig
from skerry_core.kernels.jax.decoder import (
    StepState,
    logits,
    read_block,
    run_rows,
    write_block,
)
from skerry_core.kernels.jax.jax_attention import Attention, PaddedRows
from skerry_core.kernels.jax.weights import (
    BLOCK_SPEC,
    KV_SPEC,
    DecoderTree,
    place,
)
from skerry_core.runner import Progress, RunnerSetup
from skerry_core.runners.checks import check_admitted, check_batch, check_blocks
from skerry_core.runners.host_sampling import HostSampler
from skerry_core.runners.jax.jax_calls import Buckets, bucket
from skerry_core.runners.jax.jax_loading import fitted, load_decoder
from skerry_core.runners.jax.jax_process import (
    is_cpu,
    keep_on_disk,
    mesh_of,
    processor,
    use_threads,
)
from skerry_core.runners.jax.jax_sampler import (
    JaxSampler,
    OnDevice,
    OnHost,
    Place,
    SampledStep,
    nothing_sampled,
)

VERSION = 6  # of the arithmetic: part of the numeric build

_DTYPES: dict[str, KVDtype] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


class JaxRunner:
    """A `ModelRunner` on one or several of JAX's devices. Blocks leave and arrive whole.

    Weights, activations and KV share one dtype.
    """

    batch_invariant = False

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderTree[Array],
        *,
        mesh: Mesh,
        num_blocks: int,
        cache_dir: Path,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        formats: Sequence[str] = (),
        attention: Attention | None = None,
        chooses: Place | None = None,
        progress: Progress = lambda message, share: None,
    ) -> None:
        """`mesh` is what the weights were assembled on. `formats` names the formats that they were
        stored in. `attention`, and where tokens are chosen, are the device's own unless named.
        Raises ConfigError."""
        dtype = str(weights.embedding.dtype)
        self.kv_format = kv_format_of(config, dtype)
        self.model = config
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self._weights = weights
        self._mesh = mesh
        self._attention = attention or attention_of(config)
        layers, _, heads, size, width = self.kv_format.shape
        # One block more than the pool's is scratch: padding writes there.
        shape = layers, 2, num_blocks + 1, heads, size, width
        kv = jnp.zeros(shape, dtype, device=NamedSharding(mesh, KV_SPEC))
        whole = NamedSharding(mesh, P())
        sampled = jnp.zeros((max_samples, config.hidden_size), dtype, device=whole)
        self._state = StepState(kv, sampled)
        self._logits: Array | Float32 = np.zeros((0, config.vocab_size), np.float32)
        self._num_samples = 0
        self._under_way: deque[SampledStep] = deque()
        self._sampler: JaxSampler
        self.feeds = (chooses or ("host" if is_cpu() else "device")) == "device"
        self.steps_ahead = int(self.feeds)
        if self.feeds:
            self._sampler = OnDevice(config.vocab_size, max_samples, mesh)
        else:
            host = HostSampler(config.vocab_size, cache_dir, progress)
            self._sampler = OnHost(host, place(np.zeros(max_samples, np.int32), mesh, P()))
        self._programs: dict[tuple[int, ...], Compiled] = {}  # by shape
        in_place = None if self._attention == "xla" else num_blocks
        self._buckets = Buckets.of(max_samples, max_step_tokens, config.max_context, in_place)
        count = jax.process_count()
        about = ["jax", VERSION, jax.__version__, *processor(), mesh.size, dtype, count]
        about += [count, dtype, self._attention, *formats]  # two again: builds keep their names
        digest = hashlib.blake2b(" ".join(map(str, about)).encode(), digest_size=8)
        self.numeric_build = f"jax-{digest.hexdigest()}"

    @classmethod
    def open(
        cls,
        setup: RunnerSetup,
        *,
        dtype: KVDtype | None = None,
        attention: Attention | None = None,
        chooses: Place | None = None,
    ) -> JaxRunner:
        """Load a GGUF or safetensors model. Raises WeightsError or ConfigError.

        Sizes that are None are as the devices have room for beside the weights (`fitted`); on a CPU
        `host_blocks`, 512 and 64. Weights, activations and KV are in bfloat16 unless a dtype is
        named, on a CPU in float32. Heads and feed-forward networks are divided over ranks.
        `cache_dir` keeps compiled programs between starts. `threads` is how many of a CPU's cores a
        step may use; like the cache it is JAX's for the whole process, and the first runner's
        holds.
        """
        if setup.threads < 1:
            raise ConfigError(f"threads must be at least 1, got {setup.threads}")
        use_threads(setup.threads)
        keep_on_disk(setup.cache_dir)
        mesh = mesh_of(setup.parallel.num_ranks)
        own_dtype = dtype or ("float32" if is_cpu() else "bfloat16")
        config, placed, formats = load_decoder(setup.weights, own_dtype, mesh)
        attention = attention or attention_of(config)
        sizes = fitted(config, kv_format_of(config, own_dtype), mesh, attention, setup.sizes)
        return cls(
            config, placed, mesh=mesh, cache_dir=setup.cache_dir, **asdict(sizes),
            formats=formats, attention=attention, chooses=chooses, progress=setup.progress,
        )  # fmt: skip

    @classmethod
    def from_setup(cls, setup: RunnerSetup) -> JaxRunner:
        """Open a model as `open` does, of the devices' own dtype and attention."""
        return cls.open(setup)

    def warm_up(self, progress: Progress) -> None:
        """Compile every program, or load it from the disk. None is run: that may take longer."""
        steps = self._buckets.shapes
        total = len(steps) + len(self._buckets.rows)
        for done, (rows, count, width) in enumerate(steps):
            progress("compiling JAX programs", done / total)
            shapes = (rows, count), (rows,), (rows,), (rows, width), (self.max_samples,)
            inputs = PaddedRows(*(np.zeros(shape, np.int32) for shape in shapes))
            self._step_program(place(inputs, self._mesh, P()))
        for done, count in enumerate(self._buckets.rows, len(steps)):
            progress("compiling JAX programs", done / total)
            self._head_program(count)
            self._sampler.warm_up(count)
        self._admit(0, self._export(0))
        progress("JAX programs are ready", 1.0)

    def execute(self, batch: ForwardBatch) -> StepResult:
        self.launch(batch)
        return self.collect()

    def launch(self, batch: ForwardBatch) -> None:
        check_batch(batch, self)
        for call in self._buckets.calls(batch):
            rows = place(self._buckets.inputs(batch, call), self._mesh, P())
            step = self._step_program(rows)
            self._state = step(self._weights, self._state, rows, self._sampler.made)
        self._num_samples = batch.num_samples
        if batch.num_samples:
            count = bucket(batch.num_samples, self._buckets.rows)
            logits = self._head_program(count)(self._weights, self._state.sampled)
            self._logits = logits
            self._under_way.append(self._sampler.begin(logits, batch.sampling))
        else:
            self._under_way.append(nothing_sampled)

    def collect(self) -> StepResult:
        return self._under_way.popleft()()

    def forget(self) -> None:
        """Do not wait for the oldest step under way: another process has its tokens too."""
        self._under_way.popleft()

    def last_logits(self) -> Float32:
        logits: Float32 = np.asarray(self._logits)[: self._num_samples]
        return logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        check_blocks([block], self.num_blocks)
        return self._export(block)

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        check_admitted([block], data[None], self.num_blocks, self.kv_format)
        self._admit(block, data)

    def _export(self, block: int) -> NDArray[np.generic]:
        data: NDArray[np.generic] = np.array(read_block(self._state.kv, block, self._mesh))
        # NumPy has no bfloat16: its bits travel as uint16.
        return data.view(np.uint16) if self.kv_format.dtype == "bfloat16" else data

    def _admit(self, block: int, data: NDArray[np.generic]) -> None:
        kv = self._state.kv
        values = place(np.ascontiguousarray(data).view(kv.dtype), self._mesh, BLOCK_SPEC)
        self._state = self._state._replace(kv=write_block(kv, block, values, self._mesh))

    def close(self) -> None:
        self._under_way.clear()
        del self._state

    def _step_program(self, rows: PaddedRows[Array]) -> Compiled:
        """Return the step over rows of such shapes."""
        key = (*rows.token_ids.shape, rows.tables.shape[1])
        if key not in self._programs:
            arguments = self.model, self._weights, self._state, rows, self._sampler.made
            lowered = run_rows.lower(*arguments, self._attention, self._mesh)
            self._programs[key] = lowered.compile()
        return self._programs[key]

    def _head_program(self, count: int) -> Compiled:
        """Return logits of so many samples."""
        if (count,) not in self._programs:
            arguments = self.model, self._weights, self._state.sampled, count, self._mesh
            self._programs[count,] = logits.lower(*arguments).compile()
        return self._programs[count,]


def kv_format_of(config: ModelConfig, dtype: str) -> KVFormat:
    """Return the form of blocks of a model in a dtype. Raises ConfigError for one of no KV."""
    if dtype not in _DTYPES:
        raise ConfigError(f"weights must be float32, float16 or bfloat16, got {dtype}")
    return KVFormat(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, dtype=_DTYPES[dtype],
    )  # fmt: skip


def attention_of(config: ModelConfig) -> Attention:
    """Return our kernel on a GPU, for heads of a power of two, one window and no caps; XLA's
    products elsewhere."""
    takes = config.head_dim & (config.head_dim - 1) == 0
    takes &= len(config.windows) == 1 and config.score_cap is None
    return "pallas" if jax.devices()[0].platform == "gpu" and takes else "xla"
