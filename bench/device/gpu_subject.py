"""One model's weights on one device: runners over them, what their steps must read, and a clock."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
import triton

from bench.device.gpu_sizes import Sizes
from bench.device.random_weights import random_weights
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.decoder import DecoderWeights
from skerry_core.kernels.torch.quantized import Matrix, NarrowWeights, in_fewer_bits
from skerry_core.runners.torch.torch_runner import Kernels, TorchRunner


class Subject:
    """The weights, runners over them, one at a time, and the device's ceilings."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes = sizes
        self.device = device
        self.weights: DecoderWeights = random_weights(sizes.model, device, sizes.dtype)
        # Ceilings, per second: bytes copied, operations of a product, bytes to the host and back.
        self.copy_rate = self.product_rate = self.to_host_rate = self.to_device_rate = 0.0

    def describe(self) -> dict[str, str]:
        is_cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if is_cuda else platform.processor()
        return {
            "name": name, "torch": torch.__version__, "cuda": str(torch.version.cuda),
            "triton": triton.__version__, "python": platform.python_version(),
        }  # fmt: skip

    def runner(
        self,
        kernels: Kernels = "triton",
        deterministic: bool = False,
        contexts: Sequence[int] = (),
    ) -> TorchRunner:
        """Open one with room for every measure, or for rows of these contexts alone."""
        s = self.sizes
        model = replace(s.model, max_context=max(s.model.max_context, *contexts, 0))
        room = max(
            self.blocks(max(s.batches), s.context), self.blocks(1, s.prefill),
            self.blocks(1, s.hand_over), self.blocks(s.streams, s.stream_tokens),
        )  # fmt: skip
        if contexts:
            room = sum(self.blocks(1, context) for context in contexts)
        return TorchRunner(
            model, self.weights, num_blocks=room, max_step_tokens=max(s.prefill, s.streams),
            max_samples=max(s.streams, *s.batches), kernels=kernels, deterministic=deterministic,
        )  # fmt: skip

    def blocks(self, rows: int, context: int) -> int:
        return rows * -(-context // BLOCK_SIZE)

    def weight_bytes(self) -> int:
        return weight_bytes(self.weights)

    def kv_bytes(self, tokens: int) -> int:
        c = self.sizes.model
        return tokens * c.num_layers * 2 * c.num_kv_heads * c.head_dim * self.sizes.dtype.itemsize

    def prefill_operations(self, tokens: int) -> float:
        """Multiplications and additions of the layers' products, causal attention, one head row."""
        c = self.sizes.model
        parameters = weight_bytes(self.weights, has_head=False) // self.sizes.dtype.itemsize
        attention = 2 * tokens**2 * c.num_heads * c.head_dim * c.num_layers
        return 2 * tokens * parameters + attention

    def kernel_seconds(self, run: Callable[[], object]) -> float:
        """As `seconds`, of what the device does when the next one waits for it already."""
        return self.seconds(lambda: [run() for _ in range(self.sizes.repeats)]) / self.sizes.repeats

    def seconds(self, run: Callable[[], object]) -> float:
        """Median time of a run, after two that do not count."""
        times = []
        for index in range(self.sizes.rounds + 2):
            self.wait()
            begun = time.perf_counter()
            run()
            self.wait()
            if index >= 2:
                times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def weight_bytes(weights: DecoderWeights, *, has_head: bool = True) -> int:
    """Bytes that a step reads: all but the embedding, of which it looks up rows."""
    matrices = [m for w in weights.layers for m in (w.qkv, w.output, w.gate_up, w.down)]
    if has_head:
        matrices.append(weights.head)
    return sum(
        m.nbytes if isinstance(m, torch.Tensor) else m.num_bytes
        for m in matrices
        if m is not None  # of a layer of experts
    )


def in_form(weights: DecoderWeights, form: NarrowWeights) -> DecoderWeights:
    """The same matrices in fewer bits."""

    def formed(matrix: Matrix | None) -> Matrix | None:
        return None if matrix is None else in_fewer_bits(cast(torch.Tensor, matrix), form)

    layers = tuple(
        replace(
            layer, qkv=formed(layer.qkv), output=formed(layer.output),
            gate_up=formed(layer.gate_up), down=formed(layer.down),
        )
        for layer in weights.layers
    )  # fmt: skip
    return replace(weights, layers=layers, head=formed(weights.head))
