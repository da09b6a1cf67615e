"""Runs a model with Torch: on a GPU where there is one, on the CPU everywhere else.

KV lives in one tensor per model, `[layer, k|v, block, kv_head, 64, head_dim]`, so that a canonical
block is one slice of it. Prefill chunks attend one by one, decode rows together. Sampling stays on
the device.

What it guarantees bit for bit: nothing by default (matrix products choose their kernels by shape),
so `batch_invariant` is False and failover onto it is best effort.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from skerry_core.batch import Batch, Float32, StepResult
from skerry_core.config import BLOCK_SIZE, ConfigError, KVDtype, KVFormat, ModelConfig
from skerry_core.kernels.torch_sampling import sample
from skerry_core.models.loading import decoder_tensors
from skerry_core.models.torch_decoder import Decoder, DecoderWeights, assemble
from skerry_core.runners.base import Progress

VERSION = 1  # of the arithmetic: part of the numeric build
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where each of the step's tokens belongs. Index tensors live on the device."""

    slots: Tensor  # i64[T]        block * 64 + slot that each token's KV is written to
    tables: Tensor  # i64[R, M]    block tables, unused entries 0
    contexts: Tensor  # i64[R]     tokens visible to the row's last token
    starts: list[int]  # [R + 1]   first token of each row
    decode_rows: Tensor  # i64     rows of one token
    decode_tokens: Tensor  # i64   their tokens
    prefill_rows: list[int]  # rows of several tokens


class TorchRunner:
    """A `ModelRunner` on one Torch device."""

    batch_invariant = False

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        weight_digest: str = "",
    ) -> None:
        if config.sliding_window is not None:
            raise ConfigError("the torch runner has no sliding-window attention yet")
        embedding = weights.embedding
        self._device, self._dtype = embedding.device, embedding.dtype
        if self._dtype not in _DTYPES:
            raise ConfigError(f"weights must be float32, float16 or bfloat16, got {self._dtype}")
        self._model = config
        self._decoder = Decoder(config, weights)
        self._limits = (num_blocks, max_step_tokens, max_samples)
        dtype: KVDtype = _DTYPES[self._dtype]  # type: ignore[assignment]
        self._format = KVFormat(
            num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim, dtype=dtype,
        )  # fmt: skip
        layers, _, heads, size, width = self._format.shape
        shape = (layers, 2, num_blocks, heads, size, width)
        self._kv = torch.zeros(shape, dtype=self._dtype, device=self._device)
        self._logits = torch.empty(0, config.vocab_size)
        about = f"torch {VERSION} {torch.__version__} {self._device.type} {dtype} {weight_digest}"
        self._build = "torch-" + hashlib.blake2b(about.encode(), digest_size=8).hexdigest()

    @classmethod
    def open(
        cls,
        weights: Path,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> TorchRunner:
        """Load a GGUF or safetensors model onto a device. Raises WeightsError or ConfigError."""
        config, arrays, digest = decoder_tensors(weights)
        tensors = {
            name: torch.from_numpy(array).to(device=device, dtype=dtype)
            for name, array in arrays.items()
        }
        return cls(
            config, assemble(config, tensors), num_blocks=num_blocks,
            max_step_tokens=max_step_tokens, max_samples=max_samples, weight_digest=digest,
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
        progress("torch is ready", 1.0)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        rows = self._rows(batch)
        token_ids = self._to_device(batch.token_ids).long()
        positions = self._to_device(batch.positions).long()

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._attend(layer, rows, q, k, v)

        hidden = self._decoder.hidden(token_ids, positions, attend)
        wanted = self._to_device(batch.sample_tokens).long()
        self._logits = self._decoder.logits(hidden[wanted])
        return sample(self._logits, batch.sampling)

    def last_logits(self) -> Float32:
        logits: Float32 = self._logits.float().cpu().numpy()
        return logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        data = self._kv[:, :, block].contiguous().cpu()
        if self._dtype is torch.bfloat16:  # NumPy has no bfloat16: its bits travel as uint16
            return data.view(torch.uint16).numpy()
        return data.numpy()

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        expected = np.dtype(np.uint16 if self._dtype is torch.bfloat16 else self._format.dtype)
        if data.shape != self._format.shape or data.dtype != expected:
            raise ValueError(
                f"a block is {expected} {self._format.shape}, got {data.dtype} {data.shape}"
            )
        tensor = torch.from_numpy(np.ascontiguousarray(data)).view(self._dtype)
        self._kv[:, :, block] = tensor.to(self._device)

    def close(self) -> None:
        self._kv = torch.empty(0)

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)

    def _rows(self, batch: Batch) -> _Rows:
        """Index tensors of a batch, made once and used by every layer."""
        starts = batch.query_start
        lengths = np.diff(starts)
        owner = np.repeat(np.arange(batch.num_rows), lengths)
        blocks = batch.block_tables[owner, batch.positions // BLOCK_SIZE].astype(np.int64)
        slots = blocks * BLOCK_SIZE + batch.positions % BLOCK_SIZE
        contexts = batch.positions[starts[1:] - 1].astype(np.int64) + 1
        used = int(-(-contexts.max(initial=1) // BLOCK_SIZE))
        tables = np.maximum(batch.block_tables[:, :used], 0).astype(np.int64)
        decode = np.flatnonzero(lengths == 1)
        return _Rows(
            slots=self._to_device(slots),
            tables=self._to_device(tables),
            contexts=self._to_device(contexts),
            starts=starts.tolist(),
            decode_rows=self._to_device(decode),
            decode_tokens=self._to_device(starts[decode].astype(np.int64)),
            prefill_rows=np.flatnonzero(lengths > 1).tolist(),
        )

    def _attend(self, layer: int, rows: _Rows, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the step's KV of one layer, then let every row attend to its context."""
        keys, values = self._kv[layer, 0], self._kv[layer, 1]  # [N, Hk, 64, D]
        blocks, offsets = rows.slots // BLOCK_SIZE, rows.slots % BLOCK_SIZE
        keys[blocks, :, offsets] = k
        values[blocks, :, offsets] = v
        out = torch.empty_like(q)
        if len(rows.decode_rows):
            out[rows.decode_tokens] = self._attend_decode(rows, q, keys, values)
        for row in rows.prefill_rows:
            part = slice(rows.starts[row], rows.starts[row + 1])
            out[part] = self._attend_prefill(rows, row, q[part], keys, values)
        return out

    def _attend_decode(self, rows: _Rows, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """All rows of one token at once, padded to the longest context: [rows, H, D]."""
        tables = rows.tables[rows.decode_rows]
        visible = torch.arange(tables.shape[1] * BLOCK_SIZE, device=q.device)
        mask = visible < rows.contexts[rows.decode_rows][:, None]  # [rows, context]
        attended = functional.scaled_dot_product_attention(
            q[rows.decode_tokens][:, :, None],
            _gathered(keys, tables), _gathered(values, tables),
            attn_mask=mask[:, None, None], enable_gqa=True,
        )  # fmt: skip
        return attended[:, :, 0]

    def _attend_prefill(
        self, rows: _Rows, row: int, q: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """One chunk against its cached prefix and itself: q [n, H, D] → [n, H, D]."""
        tables = rows.tables[row : row + 1]
        visible = torch.arange(tables.shape[1] * BLOCK_SIZE, device=q.device)
        last = rows.contexts[row] - len(q) + torch.arange(len(q), device=q.device)
        attended = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            _gathered(keys, tables), _gathered(values, tables),
            attn_mask=visible[None] <= last[:, None], enable_gqa=True,
        )  # fmt: skip
        return attended[0].transpose(0, 1)


def _gathered(cache: Tensor, tables: Tensor) -> Tensor:
    """Blocks of each row side by side: [N, Hk, 64, D] by i64[rows, M] → [rows, Hk, M * 64, D]."""
    picked = cache[tables].transpose(1, 2)
    return picked.reshape(picked.shape[0], picked.shape[1], -1, picked.shape[-1])
