"""Runs a model with JAX: XLA on a CPU, GPU or TPU, one compiled program per bucket of shapes.

A step is cut into calls of few shapes: rows of one token together, every longer row in chunks by
itself. Rows, tokens and block tables are padded to the next bucket, so that some twenty programs
serve every batch; `warm_up` compiles them all, and they are kept on disk between starts. Hidden
states and logits come back to the host, where sampling is the numba kernel's, equal to
`skerry_core.sampling` bit for bit.

XLA chooses its products by shape, so bits depend on the buckets: `batch_invariant` is False.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled
from numpy.typing import NDArray

from skerry_core.batch import Batch, Float32, Int32, StepResult
from skerry_core.config import BLOCK_SIZE, ConfigError, KVDtype, KVFormat, ModelConfig
from skerry_core.models.jax_decoder import (
    BLOCK_SPEC,
    KV_SPEC,
    MODEL_AXIS,
    Attention,
    Rows,
    Weights,
    assemble,
    logits,
    place,
    read_block,
    run_rows,
    write_block,
)
from skerry_core.models.loading import read_decoder
from skerry_core.runner import Progress
from skerry_core.runners.checks import check_batch, check_block, check_block_data
from skerry_core.runners.host_sampling import HostSampler

VERSION = 4  # of the arithmetic: part of the numeric build
Scalar = TypeVar("Scalar", bound=np.generic)

_LEAST_CHUNK = 32  # tokens
_LEAST_CONTEXT = 8  # blocks
_DTYPES: dict[str, KVDtype] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class _Call:
    """Rows of a batch that run in one compiled call, `length` tokens each."""

    rows: Int32  # i32[b]    rows of the batch
    starts: Int32  # i32[b]  first token of each, an index into the batch's tokens
    length: int

    @property
    def tokens(self) -> Int32:
        """i32[b, length]: indices into the batch's tokens."""
        tokens: Int32 = np.add(self.starts[:, None], np.arange(self.length), dtype=np.int32)
        return tokens


class JaxRunner:
    """A `ModelRunner` on one or several of JAX's devices. Blocks leave and arrive whole.

    Weights, activations and KV share one dtype.
    """

    batch_invariant = False

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights[Array],
        *,
        mesh: Mesh,
        num_blocks: int,
        cache_dir: Path,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        formats: Sequence[str] = (),
        attention: Attention | None = None,
        progress: Progress = lambda message, share: None,
    ) -> None:
        """`mesh` is what the weights were assembled on. `formats` names the formats that they were
        stored in. `attention` is the device's own unless named. Raises ConfigError."""
        dtype = str(weights.embedding.dtype)
        if dtype not in _DTYPES:
            raise ConfigError(f"weights must be float32, float16 or bfloat16, got {dtype}")
        self.model = config
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.kv_format = KVFormat(
            num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim, dtype=_DTYPES[dtype],
        )  # fmt: skip
        self._weights = weights
        self._mesh = mesh
        self._attention = attention or attention_of(config)
        layers, _, heads, size, width = self.kv_format.shape
        # One block more than the pool's is scratch: padding writes there.
        self._kv = jnp.zeros(
            (layers, 2, num_blocks + 1, heads, size, width), dtype,
            device=NamedSharding(mesh, KV_SPEC),
        )  # fmt: skip
        self._logits: Float32 = np.zeros((0, config.vocab_size), np.float32)
        self._sample = HostSampler(config.vocab_size, cache_dir, progress)
        self._programs: dict[tuple[int, ...], Compiled] = {}  # by shape
        self._row_buckets = buckets(1, max_samples)
        self._token_buckets = buckets(_LEAST_CHUNK, max_step_tokens)
        self._table_buckets = buckets(_LEAST_CONTEXT, -(-config.max_context // BLOCK_SIZE))
        about = ["jax", VERSION, jax.__version__, *_processor(), mesh.size, dtype]
        about += [self._attention, *formats]
        digest = hashlib.blake2b(" ".join(map(str, about)).encode(), digest_size=8)
        self.numeric_build = f"jax-{digest.hexdigest()}"

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
        num_devices: int = 1,
        dtype: str = "float32",
        attention: Attention | None = None,
        progress: Progress = lambda message, share: None,
    ) -> JaxRunner:
        """Load a GGUF or safetensors model. Raises WeightsError or ConfigError.

        Heads and feed-forward networks are divided over `num_devices`. `cache_dir` keeps compiled
        programs between starts. `threads` is how many of a CPU's cores a step may use; like the
        cache it is JAX's for the whole process, and the first runner's holds.
        """
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}")
        os.environ.setdefault(_THREADS, str(threads))
        _keep_on_disk(cache_dir)
        mesh = mesh_of(num_devices)
        target = jnp.dtype(dtype)
        config, tensors, formats = read_decoder(weights, lambda array: array.astype(target))
        return cls(
            config, assemble(config, tensors, mesh), mesh=mesh, num_blocks=num_blocks,
            cache_dir=cache_dir, max_step_tokens=max_step_tokens, max_samples=max_samples,
            formats=formats, attention=attention, progress=progress,
        )  # fmt: skip

    def warm_up(self, progress: Progress) -> None:
        """Compile every program, or load it from the disk. None is run: that may take longer."""
        shapes = [
            *((rows, 1) for rows in self._row_buckets),
            *((1, count) for count in self._token_buckets),
        ]
        steps = [(*shape, width) for shape in shapes for width in self._table_buckets]
        total = len(steps) + len(self._row_buckets)
        for done, (rows, count, width) in enumerate(steps):
            progress("compiling JAX programs", done / total)
            per_row = np.zeros(rows, np.int32)
            tokens, tables = (np.zeros((rows, n), np.int32) for n in (count, width))
            self._step_program(self._rows(tokens, per_row, per_row, tables))
        for done, count in enumerate(self._row_buckets, len(steps)):
            progress("compiling JAX programs", done / total)
            shape = (count, self.model.hidden_size)
            self._head_program(self._put(np.zeros(shape, self._weights.embedding.dtype)))
        self.admit_block(0, self.export_block(0))
        progress("JAX programs are ready", 1.0)

    def execute(self, batch: Batch) -> StepResult:
        check_batch(batch, self)
        calls = list(self._calls(batch))
        answers = [self._run_call(batch, call) for call in calls]
        hidden = np.empty((batch.num_tokens, self.model.hidden_size), self._weights.embedding.dtype)
        for call, answer in zip(calls, answers, strict=True):
            hidden[call.tokens] = np.asarray(answer)[: len(call.rows), : call.length]
        self._logits = self._head(hidden[batch.sample_tokens])
        return self._sample(self._logits, batch.sampling)

    def last_logits(self) -> Float32:
        return self._logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        check_block(block, self.num_blocks)
        data: NDArray[np.generic] = np.array(read_block(self._kv, block))
        # NumPy has no bfloat16: its bits travel as uint16.
        return data.view(np.uint16) if self.kv_format.dtype == "bfloat16" else data

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        check_block(block, self.num_blocks)
        check_block_data(data, self.kv_format)
        values = np.ascontiguousarray(data).view(self._kv.dtype)
        self._kv = write_block(self._kv, block, place(values, self._mesh, BLOCK_SPEC), self._mesh)

    def close(self) -> None:
        self._kv = jnp.zeros(0)

    def _calls(self, batch: Batch) -> Iterator[_Call]:
        """Rows of one token together, every longer row by itself, cut to the largest buckets."""
        starts, lengths = batch.query_start[:-1], np.diff(batch.query_start)
        single = np.flatnonzero(lengths == 1).astype(np.int32)
        for group in _cut(single, self._row_buckets[-1]):
            yield _Call(group, starts[group], 1)
        for row in np.flatnonzero(lengths > 1).astype(np.int32):
            end = starts[row] + lengths[row]
            for start in range(starts[row], end, self._token_buckets[-1]):
                length = min(int(end) - start, self._token_buckets[-1])
                yield _Call(np.array([row], np.int32), np.array([start], np.int32), length)

    def _run_call(self, batch: Batch, call: _Call) -> Array:
        """Hidden states [>= b, >= length, hidden], still on the device."""
        tokens = call.tokens
        first = batch.positions[call.starts]
        used = int(first.max() + call.length - 1) // BLOCK_SIZE + 1
        rows = _bucket(len(call.rows), self._row_buckets)
        count = 1 if call.length == 1 else _bucket(call.length, self._token_buckets)
        width = _bucket(used, self._table_buckets)
        tables = np.maximum(batch.block_tables[call.rows, :used], 0)
        return self._run(
            _padded(batch.token_ids[tokens], (rows, count)),
            _padded(first, (rows,)),
            _padded(np.full(len(call.rows), call.length, np.int32), (rows,)),
            _padded(tables, (rows, width)),
        )

    def _run(self, token_ids: Int32, first: Int32, lengths: Int32, tables: Int32) -> Array:
        rows = self._rows(token_ids, first, lengths, tables)
        hidden, self._kv = self._step_program(rows)(self._weights, self._kv, rows)
        return hidden

    def _rows(self, *arrays: Int32) -> Rows:
        return Rows(*map(self._put, arrays))

    def _put(self, array: NDArray[np.generic]) -> Array:
        """On every device. `jnp.asarray` would compile a program for each shape."""
        return place(array, self._mesh, P())

    def _step_program(self, rows: Rows) -> Compiled:
        """The step over rows of such shapes."""
        key = (*rows.token_ids.shape, rows.tables.shape[1])
        if key not in self._programs:
            arguments = self.model, self._weights, self._kv, rows, self._attention, self._mesh
            self._programs[key] = run_rows.lower(*arguments).compile()
        return self._programs[key]

    def _head_program(self, hidden: Array) -> Compiled:
        """Logits of so many hidden states."""
        key = (len(hidden),)
        if key not in self._programs:
            self._programs[key] = logits.lower(self.model, self._weights, hidden).compile()
        return self._programs[key]

    def _head(self, hidden: NDArray[np.generic]) -> Float32:
        """Logits f32[S, V] of hidden states [S, hidden]."""
        told = np.empty((len(hidden), self.model.vocab_size), np.float32)
        start = 0
        for piece in _cut(hidden, self._row_buckets[-1]):
            padded = _padded(piece, (_bucket(len(piece), self._row_buckets), hidden.shape[1]))
            states = self._put(padded)
            answer = self._head_program(states)(self._weights, states)
            told[start : start + len(piece)] = np.asarray(answer)[: len(piece)]
            start += len(piece)
        return told


def mesh_of(num_devices: int) -> Mesh:
    """The first of JAX's devices, side by side. Raises ConfigError when there are not so many."""
    devices = jax.devices()
    if not 1 <= num_devices <= len(devices):
        raise ConfigError(f"num_devices must be 1 to {len(devices)} here, got {num_devices}")
    return Mesh(np.array(devices[:num_devices]), (MODEL_AXIS,))


def attention_of(config: ModelConfig) -> Attention:
    """Our kernel on a GPU, where it takes heads of a power of two; XLA's products elsewhere."""
    takes = config.head_dim & (config.head_dim - 1) == 0
    return "pallas" if jax.devices()[0].platform == "gpu" and takes else "xla"


_THREADS = "PJRT_NPROC"  # read by XLA when its CPU client is made


def buckets(least: int, largest: int) -> tuple[int, ...]:
    """Sizes that shapes are padded to: `least` and powers of four times it, and `largest`."""
    sizes = [largest]
    size = least
    while size < largest:
        sizes.append(size)
        size *= 4
    return tuple(sorted(sizes))


def _bucket(size: int, sizes: Sequence[int]) -> int:
    return next(bucket for bucket in sizes if bucket >= size)


def _cut(array: NDArray[Scalar], length: int) -> Iterator[NDArray[Scalar]]:
    for start in range(0, len(array), length):
        yield array[start : start + length]


def _padded(array: NDArray[Scalar], shape: tuple[int, ...]) -> NDArray[Scalar]:
    padded = np.zeros(shape, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


def _keep_on_disk(cache_dir: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(cache_dir / "jax" / _cpu()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _processor() -> list[str]:
    """What decides which code XLA makes, beside its version."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return ["cpu", _cpu(), f"{os.environ.get(_THREADS)} threads"]
    return [device.platform, device.device_kind]


def _cpu() -> str:
    """Names this kind of CPU: code that XLA makes for it may not run on another."""
    kind = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return hashlib.blake2b(repr(kind).encode(), digest_size=8).hexdigest()
