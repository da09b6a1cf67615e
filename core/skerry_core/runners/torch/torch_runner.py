"""Runs a model with Torch: on a GPU where there is one, on the CPU everywhere else.

Which kernels run is decided by the device: our Triton kernels on CUDA (`triton_steps`), plain Torch
elsewhere (`torch_steps`). Weights, activations and the canonical KV share one dtype; sampling stays
on the device and chooses as `skerry_core.sampling` says.

By default matrix products choose their kernels by shape, so logits depend on the batch in their
last bits: `batch_invariant` is False. With `deterministic=True` the bits are the same alone and in
any batch, on machines with the same `numeric_build`, and a step is slower: on the CPU tokens run in
tiles of one fixed shape (`torch_invariant`), on CUDA products are our own, of one tile size.
"""

from __future__ import annotations

import hashlib
import platform
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import ConfigError, KVDtype, KVFormat, ModelConfig
from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.kernels.torch import invariant as torch_invariant
from skerry_core.kernels.torch.decoder import Decoder, DecoderWeights, assemble
from skerry_core.kernels.torch.quantized import Matrix, Narrow, NarrowWeights
from skerry_core.kernels.torch.torch_ops import TORCH_OPS
from skerry_core.kernels.torch.torch_sampling import Choose, Sampled, begin
from skerry_core.page_checksums import Checksums
from skerry_core.runner import HOST_BLOCKS, Progress, RunnerSetup, WantedSizes
from skerry_core.runners.checks import check_batch
from skerry_core.runners.torch.decoder_loading import load_decoder
from skerry_core.runners.torch.device_sizes import fitted
from skerry_core.runners.torch.paged_kv import PagedKV, check_narrow
from skerry_core.runners.torch.torch_steps import PlainSteps, Steps, TiledSteps

VERSION = 4  # of the arithmetic: part of the numeric build
Kernels = Literal["torch", "triton"]
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class TorchRunner:
    """A `ModelRunner` on one Torch device, which on CUDA computes while the next step is prepared.

    Not for two threads at once.
    """

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
        kernels: Kernels | None = None,
        narrow_kv: Narrow | None = None,
    ) -> None:
        """`formats` names the formats that the weights were stored in. `kernels` are the device's
        own unless named. With `narrow_kv` KV is kept in 8 bits (fp8: Ada or later).

        Raises ConfigError on a dtype that is no KV dtype, and on `deterministic` or `narrow_kv`
        where the device cannot keep it.
        """
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}")
        self._threads = threads
        _use_threads(threads)
        device, dtype = weights.embedding.device, weights.embedding.dtype
        kernels = kernels or kernels_of(device)
        self.model = config
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.batch_invariant = deterministic
        self.overlaps = device.type == "cuda"
        self.kv_format = _kv_format(config, dtype)
        self._kv = PagedKV(
            self.kv_format, num_blocks, device, dtype, has_triton=kernels == "triton",
            narrow=narrow_kv,
        )  # fmt: skip
        self._choose: Choose | None = None
        about = [VERSION, torch.__version__, _processor(device), dtype, *formats]
        if kernels == "triton":
            self._steps, self._choose, version = self._triton(config, weights)
            about += ["triton", version, narrow_kv or "", deterministic]
        else:
            self._steps = self._plain(config, weights)
            if deterministic:
                about.append(f"tiles of {torch_invariant.TILE}")
        self._logits = torch.empty(0, config.vocab_size)
        self._made = torch.empty(0, dtype=torch.long, device=device)  # by the step launched last
        self._under_way: deque[Sampled] = deque()
        digest = hashlib.blake2b(" ".join(map(str, about)).encode(), digest_size=8)
        self.numeric_build = f"torch-{digest.hexdigest()}"

    def _plain(self, config: ModelConfig, weights: DecoderWeights) -> Steps:
        if not self.batch_invariant:
            return PlainSteps(Decoder(config, weights, TORCH_OPS), self._kv)
        torch_invariant.check_products(
            _shapes_once(weights), kv_heads=config.num_kv_heads,
            group=config.num_heads // config.num_kv_heads, head_dim=config.head_dim,
        )  # fmt: skip
        return TiledSteps(Decoder(config, weights, torch_invariant.INVARIANT_OPS), self._kv)

    def _triton(self, config: ModelConfig, weights: DecoderWeights) -> tuple[Steps, Choose, str]:
        """Open Triton's kernels, which need not be installed otherwise."""
        import triton

        from skerry_core.kernels.triton.triton_sampling import choose
        from skerry_core.runners.torch import triton_steps

        ops = triton_steps.TRITON_OPS
        if self.batch_invariant:
            ops = triton_steps.INVARIANT_TRITON_OPS
        steps = triton_steps.TritonSteps(
            Decoder(config, weights, ops), self._kv,
            max_rows=min(self.max_samples, self.max_step_tokens),
            is_invariant=self.batch_invariant,
        )  # fmt: skip
        return steps, choose, triton.__version__

    @classmethod
    def open(
        cls,
        weights: Path,
        *,
        num_blocks: int | None = None,
        max_step_tokens: int | None = 512,
        max_samples: int | None = 64,
        host_blocks: int = HOST_BLOCKS,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        threads: int = 2,
        deterministic: bool = False,
        kernels: Kernels | None = None,
        narrow_kv: Narrow | None = None,
        narrow_weights: NarrowWeights | None = None,
    ) -> TorchRunner:
        """Load a GGUF or safetensors model onto a device. Raises WeightsError or ConfigError.

        Sizes that are None are as a GPU has room for beside the weights; on a CPU `host_blocks`,
        512 and 64. Unless named, the device is a GPU where there is one, and the dtype bfloat16
        there, float32 on a CPU. `threads` is how many of the host's cores a step may use; Torch has
        one such number in a process, which each step sets. Matrices of 4 and 8 bits stay so where
        Triton's kernels run; with `narrow_weights` those of floats become so too.
        """
        _use_threads(threads)
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        own_dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
        has_triton = (kernels or kernels_of(target)) == "triton"
        check_narrow("a matrix", narrow_weights, target, has_triton=has_triton)
        config, tensors, formats = load_decoder(
            weights, target, dtype or own_dtype, keeps_quantized=has_triton, narrow=narrow_weights
        )
        sizes = fitted(
            target, config, _kv_format(config, dtype or own_dtype),
            WantedSizes(
                num_blocks=num_blocks, max_step_tokens=max_step_tokens, max_samples=max_samples,
                host_blocks=host_blocks,
            ),
            is_narrow=narrow_kv is not None, is_invariant=deterministic,
        )  # fmt: skip
        return cls(
            config, assemble(config, tensors), num_blocks=sizes.num_blocks,
            max_step_tokens=sizes.max_step_tokens, max_samples=sizes.max_samples, threads=threads,
            deterministic=deterministic, formats=formats, kernels=kernels, narrow_kv=narrow_kv,
        )  # fmt: skip

    @classmethod
    def from_setup(cls, setup: RunnerSetup, *, deterministic: bool = False) -> TorchRunner:
        """Open a model as `open` does."""
        floats = None if setup.floats == "keep" else setup.floats
        return cls.open(
            setup.weights, **asdict(setup.sizes), threads=setup.threads,
            deterministic=deterministic, narrow_kv=cast(Narrow | None, setup.kv),
            narrow_weights=cast(NarrowWeights | None, floats),
        )  # fmt: skip

    @torch.inference_mode()
    def warm_up(self, progress: Progress) -> None:
        self._steps.warm_up(progress)
        if self._choose is not None:
            device = self._kv.kv.device
            logits, floats = (torch.zeros(1, n, device=device) for n in (self.model.vocab_size, 1))
            ints, longs = (
                torch.zeros(1, dtype=t, device=device) for t in (torch.int32, torch.long)
            )
            style = floats[0]
            self._choose(logits, style, style, ints, style, longs, longs, ints, ints)

    def execute(self, batch: ForwardBatch) -> StepResult:
        self.launch(batch)
        return self.collect()

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> None:
        check_batch(batch, self)
        _use_threads(self._threads)
        self._logits, chosen = self._steps.run(batch, self._made)
        sampled = begin(self._logits, batch.sampling, self._choose, chosen)
        self._made = sampled.chosen
        self._under_way.append(sampled)

    def collect(self) -> StepResult:
        return self._under_way.popleft().result()

    def last_logits(self) -> Float32:
        logits: Float32 = self._logits.float().cpu().numpy()
        return logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        return self.export_blocks([block])[0][0]

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        self.admit_blocks([block], data[None])

    @torch.inference_mode()
    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[np.generic], Checksums | None]:
        """See `BlockMover`; all in one transfer."""
        return self._kv.export_blocks(blocks)

    @torch.inference_mode()
    def admit_blocks(
        self,
        blocks: Sequence[int],
        data: NDArray[np.generic],
        checksums: Checksums | None = None,
    ) -> None:
        """See `BlockMover`; all in one transfer."""
        self._kv.admit_blocks(blocks, data, checksums)

    def open_pages(self, count: int) -> DevicePages:
        """See `PageMover`."""
        return self._kv.open_pages(count)

    @torch.inference_mode()
    def export_pages(self, blocks: Sequence[int], pages: Sequence[DevicePage]) -> Checksums:
        """See `PageMover`; the device is waited for once."""
        return self._kv.export_pages(blocks, pages)

    @torch.inference_mode()
    def admit_page(self, block: int, page: DevicePage, checksum: int) -> None:
        """See `PageMover`."""
        self._kv.admit_page(block, page, checksum)

    def close(self) -> None:
        self._kv.close()
        del self._steps, self._kv


def kernels_of(device: torch.device) -> Kernels:
    """Return the kernels that a device runs best."""
    return "triton" if device.type == "cuda" else "torch"


def _kv_format(config: ModelConfig, dtype: torch.dtype) -> KVFormat:
    if dtype not in _DTYPES:
        raise ConfigError(f"weights must be float32, float16 or bfloat16, got {dtype}")
    return KVFormat(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, dtype=cast(KVDtype, _DTYPES[dtype]),
    )  # fmt: skip


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _shapes_once(weights: DecoderWeights) -> list[Tensor]:
    """Return one matrix of each shape that the model multiplies by."""
    matrices: list[Matrix | None] = [weights.head]
    for layer in weights.layers:
        matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
        if layer.experts is not None:
            each = layer.experts
            matrices += [each.router, each.gate_up[0], each.down[0]]
    plain = [matrix for matrix in matrices if isinstance(matrix, Tensor)]
    return list({matrix.shape: matrix for matrix in plain}.values())


def _processor(device: torch.device) -> str:
    """Return what decides which kernels Torch runs, beside its version."""
    if device.type == "cuda":
        return f"cuda {torch.version.cuda} {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {capability} {torch.get_num_threads()} threads"
