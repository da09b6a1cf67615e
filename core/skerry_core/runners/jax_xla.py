"""Runs a model with JAX: XLA on a CPU, GPU or TPU, one compiled program per bucket of shapes.

A step is cut into calls of one shape each: all decode rows together, and each prefill chunk by
itself. Rows, tokens and blocks are padded to powers of two, so a handful of programs serves every
batch; they are compiled at start, and kept on disk between starts. Logits come back to the host,
where sampling is the numba kernel's, equal to the reference bit for bit.

Bits depend on the bucket (XLA chooses its products by shape), so `batch_invariant` is False.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from skerry_core.batch import Batch, Float32, Int32, StepResult
from skerry_core.config import BLOCK_SIZE, KVDtype, KVFormat, ModelConfig
from skerry_core.kernels.host_sampling import HostSampler
from skerry_core.models.jax_decoder import Placement, Weights, assemble, step
from skerry_core.models.loading import read_decoder
from skerry_core.runners.base import Progress

VERSION = 1  # of the arithmetic: part of the numeric build


@dataclass(frozen=True, slots=True)
class _Call:
    """Rows of a batch that run in one compiled call."""

    rows: Int32  # i32[b]            rows of the batch
    tokens: list[Int32]  # b times i32[<= n]  their flat token indices


class JaxRunner:
    """A `ModelRunner` on JAX's default device."""

    batch_invariant = False

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        formats: Sequence[str] = (),
    ) -> None:
        self._model, self._weights = config, weights
        self._limits = (num_blocks, max_step_tokens, max_samples)
        dtype: KVDtype = "bfloat16" if weights.embedding.dtype == jnp.bfloat16 else "float32"
        self._format = KVFormat(
            num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim, dtype=dtype,
        )  # fmt: skip
        layers, _, heads, size, width = self._format.shape
        self._scratch = num_blocks  # one block more than the pool's: padding writes there
        self._kv = jnp.zeros(
            (layers, 2, num_blocks + 1, heads, size, width), weights.embedding.dtype
        )
        self._logits = np.zeros((0, config.vocab_size), np.float32)
        self._sample = HostSampler(config.vocab_size)
        platform = jax.default_backend()
        about = " ".join(["jax", str(VERSION), jax.__version__, platform, dtype, *formats])
        self._build = "jax-" + hashlib.blake2b(about.encode(), digest_size=8).hexdigest()

    @classmethod
    def open(
        cls,
        weights: Path,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        cache_dir: Path | None = None,
        dtype: str = "float32",
    ) -> JaxRunner:
        """Load a GGUF or safetensors model. Raises WeightsError or ConfigError.

        `cache_dir` keeps compiled programs between starts.
        """
        if cache_dir is not None:
            jax.config.update("jax_compilation_cache_dir", str(cache_dir / "jax"))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        config, tensors, formats = read_decoder(weights, lambda array: array)
        return cls(
            config, assemble(config, tensors, jnp.dtype(dtype)), num_blocks=num_blocks,
            max_step_tokens=max_step_tokens, max_samples=max_samples, formats=formats,
        )  # fmt: skip

    @property
    def model(self) -> ModelConfig:
        return self._model

    @property
    def kv_format(self) -> KVFormat:
        return self._format

    @property
    def num_blocks(self) -> int:
        return self._limits[0]

    @property
    def max_step_tokens(self) -> int:
        return self._limits[1]

    @property
    def max_samples(self) -> int:
        return self._limits[2]

    @property
    def numeric_build(self) -> str:
        return self._build

    def warm_up(self, progress: Progress) -> None:
        """Compile the smallest decode and the largest prefill program; others on first use."""
        for share, count in ((0.0, 1), (0.5, self.max_step_tokens)):
            progress(f"compiling the JAX step for {count} tokens", share)
            padding = np.full((1, count), -1, np.int32)
            self._run(np.zeros((1, count), np.int32), padding, padding[:, :1], padding[:, :1] + 1)
        progress("JAX programs are ready", 1.0)

    def execute(self, batch: Batch) -> StepResult:
        logits = np.empty((batch.num_samples, self._model.vocab_size), np.float32)
        for call in _calls(batch):
            self._execute_call(batch, call, logits)
        self._logits = logits
        return self._sample(logits, batch.sampling)

    def last_logits(self) -> Float32:
        return self._logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        exported = np.asarray(self._kv[:, :, block])
        return exported.view(np.uint16) if self._format.dtype == "bfloat16" else exported

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        wide = self._format.dtype == "float32"
        expected = np.dtype(np.float32 if wide else np.uint16)
        if data.shape != self._format.shape or data.dtype != expected:
            raise ValueError(
                f"a block is {expected} {self._format.shape}, got {data.dtype} {data.shape}"
            )
        values = data if wide else data.view(jnp.bfloat16)
        self._kv = _replace_block(self._kv, block, jnp.asarray(values))

    def close(self) -> None:
        self._kv = jnp.zeros(0)

    def _execute_call(self, batch: Batch, call: _Call, logits: Float32) -> None:
        """Run some rows, and put the logits of their sampled tokens where they belong."""
        longest = max(len(tokens) for tokens in call.tokens)
        token_ids = np.zeros((len(call.rows), longest), np.int32)
        positions = np.full((len(call.rows), longest), -1, np.int32)
        for i, tokens in enumerate(call.tokens):
            token_ids[i, : len(tokens)] = batch.token_ids[tokens]
            positions[i, : len(tokens)] = batch.positions[tokens]
        samples = [np.flatnonzero(np.isin(batch.sample_tokens, tokens)) for tokens in call.tokens]
        last = np.zeros((len(call.rows), max(1, max(map(len, samples)))), np.int32)
        for i, (tokens, wanted) in enumerate(zip(call.tokens, samples, strict=True)):
            last[i, : len(wanted)] = batch.sample_tokens[wanted] - tokens[0]
        answer = self._run(token_ids, positions, batch.block_tables[call.rows], last)
        for i, wanted in enumerate(samples):
            logits[wanted] = answer[i, : len(wanted)]

    def _run(self, token_ids: Int32, positions: Int32, tables: Int32, last: Int32) -> Float32:
        """One compiled step over rows padded to a bucket; positions of -1 are padding."""
        rows, count = token_ids.shape
        used = max(1, int(positions.max()) // BLOCK_SIZE + 1)
        padded_rows, padded_count = _bucket(rows), _bucket(count)
        place = Placement(
            token_ids=_padded(token_ids, (padded_rows, padded_count), 0),
            positions=_padded(np.maximum(positions, 0), (padded_rows, padded_count), 0),
            write_blocks=_padded(
                self._write_blocks(positions, tables), (padded_rows, padded_count), self._scratch
            ),
            tables=_padded(np.maximum(tables[:, :used], 0), (padded_rows, _bucket(used)), 0),
            last=_padded(last, (padded_rows, _bucket(last.shape[1])), 0),
        )
        answer, self._kv = step(self._model, self._weights, self._kv, place)
        result: Float32 = np.asarray(answer)
        return result

    def _write_blocks(self, positions: Int32, tables: Int32) -> Int32:
        """Block that each token's KV goes to, i32[B, n]; padding goes to the scratch block."""
        blocks = np.take_along_axis(tables, np.maximum(positions, 0) // BLOCK_SIZE, axis=1)
        result: Int32 = np.where(positions < 0, self._scratch, blocks).astype(np.int32)
        return result


@partial(jax.jit, donate_argnums=0)
def _replace_block(kv: Array, block: int, data: Array) -> Array:
    return kv.at[:, :, block].set(data)


def _calls(batch: Batch) -> Iterator[_Call]:
    """Decode rows together, every prefill chunk by itself."""
    starts = batch.query_start
    lengths = np.diff(starts)
    decode = np.flatnonzero(lengths == 1).astype(np.int32)
    if len(decode):
        yield _Call(decode, [starts[row : row + 1] for row in decode])
    for row in np.flatnonzero(lengths > 1).astype(np.int32):
        tokens = np.arange(starts[row], starts[row + 1], dtype=np.int32)
        yield _Call(np.array([row], np.int32), [tokens])


def _bucket(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def _padded(array: Int32, shape: tuple[int, int], value: int) -> Int32:
    padded = np.full(shape, value, np.int32)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded
