"""Runs a model with Torch: on a GPU where there is one, on the CPU everywhere else.

KV lives in one tensor per model, `[layer, k|v, block, kv_head, 64, head_dim]`, so that a canonical
block is one slice of it. Sampling stays on the device and chooses as `skerry_core.sampling` says.

By default matrix products choose their kernels by shape, so logits depend on the batch in their
last bits: `batch_invariant` is False. With `deterministic=True` tokens run in tiles of one fixed
shape (`kernels/torch_invariant.py`), slower, and the bits are the same alone and in any batch, on
machines with the same `numeric_build`.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.batch import Batch, Float32, StepResult
from skerry_core.config import ConfigError, KVDtype, KVFormat, ModelConfig
from skerry_core.kernels import torch_attention, torch_invariant
from skerry_core.kernels.torch_ops import TORCH_OPS
from skerry_core.kernels.torch_sampling import sample
from skerry_core.models.loading import read_decoder
from skerry_core.models.torch_decoder import Decoder, DecoderWeights, assemble
from skerry_core.runners.base import Progress
from skerry_core.runners.checks import check_batch, check_block, check_block_data

VERSION = 2  # of the arithmetic: part of the numeric build
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class TorchRunner:
    """A `ModelRunner` on one Torch device. Weights, activations and KV share one dtype."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        threads: int = 2,
        deterministic: bool = False,
        formats: Sequence[str] = (),
    ) -> None:
        """`formats` names the formats that the weights were stored in.

        Raises ConfigError on a dtype that is no KV dtype, and on `deterministic` where the device
        cannot keep it.
        """
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}")
        self._threads = threads
        _use_threads(threads)
        self._device, self._dtype = weights.embedding.device, weights.embedding.dtype
        if self._dtype not in _DTYPES:
            raise ConfigError(f"weights must be float32, float16 or bfloat16, got {self._dtype}")
        if deterministic:
            torch_invariant.check_products(
                _shapes_once(weights), kv_heads=config.num_kv_heads,
                group=config.num_heads // config.num_kv_heads, head_dim=config.head_dim,
            )  # fmt: skip
        self.model = config
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.batch_invariant = deterministic
        self.kv_format = KVFormat(
            num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim, dtype=cast(KVDtype, _DTYPES[self._dtype]),
        )  # fmt: skip
        ops = torch_invariant.INVARIANT_OPS if deterministic else TORCH_OPS
        self._decoder = Decoder(config, weights, ops)
        layers, _, heads, size, width = self.kv_format.shape
        # One block more than the pool's is scratch: the padding of tiles writes there.
        shape = (layers, 2, num_blocks + 1, heads, size, width)
        self._kv = torch.zeros(shape, dtype=self._dtype, device=self._device)
        self._logits = torch.empty(0, config.vocab_size)
        about = [VERSION, torch.__version__, _processor(self._device), self._dtype, *formats]
        if deterministic:
            about.append(f"tiles of {torch_invariant.TILE}")
        digest = hashlib.blake2b(" ".join(map(str, about)).encode(), digest_size=8)
        self.numeric_build = f"torch-{digest.hexdigest()}"

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
        threads: int = 2,
        deterministic: bool = False,
    ) -> TorchRunner:
        """Load a GGUF or safetensors model onto a device. Raises WeightsError or ConfigError.

        `threads` is how many of the host's cores a step may use; Torch has one such number in a
        process, which each step sets. On a CPU without fast half-precision products take float32.
        """
        _use_threads(threads)
        config, tensors, formats = read_decoder(
            weights, lambda array: torch.from_numpy(array).to(device=device, dtype=dtype)
        )
        return cls(
            config, assemble(config, tensors), num_blocks=num_blocks,
            max_step_tokens=max_step_tokens, max_samples=max_samples, threads=threads,
            deterministic=deterministic, formats=formats,
        )  # fmt: skip

    def warm_up(self, progress: Progress) -> None:
        progress("torch has nothing to compile", 1.0)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        check_batch(batch, self)
        _use_threads(self._threads)
        if self.batch_invariant:
            self._logits = self._run_tiles(batch)
        else:
            self._logits = self._run(batch)
        return sample(self._logits, batch.sampling)

    def _run(self, batch: Batch) -> Tensor:
        """Logits f32[S, V], all tokens at once."""
        rows = torch_attention.Rows.of(batch, self._device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv = self._kv[layer]
            torch_attention.store(kv, rows.blocks, rows.slots, k, v)
            return torch_attention.attend(kv, rows, q, self.model.sliding_window)

        token_ids = torch.from_numpy(batch.token_ids).to(self._device).long()
        hidden = self._decoder.hidden(token_ids, rows.positions, attend)
        return self._decoder.logits(hidden[self._samples(batch)])

    def _run_tiles(self, batch: Batch) -> Tensor:
        """Logits f32[S, V], a tile of tokens at a time, and then a tile of samples."""
        hidden = []
        for tile in torch_invariant.tiles(batch, self.num_blocks, self._device):
            hidden.append(self._run_tile(tile)[: tile.num_tokens])
        sampled = torch.cat(hidden)[self._samples(batch)]
        pieces = [self._decoder.logits(piece) for piece in torch_invariant.in_tiles(sampled)]
        if not pieces:
            return torch.empty(0, self.model.vocab_size, device=self._device)
        return torch.cat(pieces)[: batch.num_samples]

    def _run_tile(self, tile: torch_invariant.Tile) -> Tensor:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv = self._kv[layer]
            torch_attention.store(kv, tile.blocks, tile.slots, k, v)
            return torch_invariant.attend(kv, tile, q, self.model.sliding_window)

        return self._decoder.hidden(tile.token_ids, tile.positions, attend)

    def _samples(self, batch: Batch) -> Tensor:
        return torch.from_numpy(batch.sample_tokens).to(self._device).long()

    def last_logits(self) -> Float32:
        logits: Float32 = self._logits.cpu().numpy()
        return logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        check_block(block, self.num_blocks)
        data = self._kv[:, :, block].cpu().contiguous().clone()
        if self._dtype is torch.bfloat16:  # NumPy has no bfloat16: its bits travel as uint16
            return data.view(torch.uint16).numpy()
        return data.numpy()

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        check_block(block, self.num_blocks)
        check_block_data(data, self.kv_format)
        owned = torch.from_numpy(np.array(data))  # a frame's bytes are read-only, torch's are not
        self._kv[:, :, block] = owned.view(self._dtype).to(self._device)

    def close(self) -> None:
        self._kv = torch.empty(0)


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _shapes_once(weights: DecoderWeights) -> list[Tensor]:
    """One matrix of each shape that the model multiplies by."""
    layer = weights.layers[0]
    matrices = (layer.qkv, layer.output, layer.gate_up, layer.down, weights.head)
    return list({matrix.shape: matrix for matrix in matrices}.values())


def _processor(device: torch.device) -> str:
    """What decides which kernels Torch runs, beside its version."""
    if device.type == "cuda":
        return f"cuda {torch.version.cuda} {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {capability} {torch.get_num_threads()} threads"
