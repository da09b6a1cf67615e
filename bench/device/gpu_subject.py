"""One model's weights on one device: runners over them, what their steps must read, and a clock."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
import triton

from bench.device.gpu_batches import num_blocks
from bench.device.gpu_sizes import DRY, FULL, Sizes
from bench.device.random_weights import random_weights
from skerry_core.kernels.torch.decoder import DecoderWeights
from skerry_core.kernels.torch.quantized import Matrix, NarrowWeights, in_fewer_bits
from skerry_core.runners.torch.torch_runner import Kernels, TorchRunner


class Clock:
    """Times what a device does."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes = sizes
        self.device = device

    def kernel_seconds(self, run: Callable[[], object]) -> float:
        """Return the median time of a run that waits on the device already when it begins."""
        return self.seconds(lambda: [run() for _ in range(self.sizes.repeats)]) / self.sizes.repeats

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the median time of a run, after some that do not count."""
        times = []
        for index in range(self.sizes.warm_ups + self.sizes.rounds):
            self.wait()
            begun = time.perf_counter()
            run()
            self.wait()
            if index >= self.sizes.warm_ups:
                times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Subject(Clock):
    """The weights, runners over them, one at a time, and the device's ceilings."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, device)
        self.weights: DecoderWeights = random_weights(sizes.model, device, sizes.dtype)
        # Ceilings, per second: bytes copied, operations of a product, bytes to the host and back.
        self.copy_rate = self.product_rate = self.to_host_rate = self.to_device_rate = 0.0

    def measure_ceilings(self) -> None:
        """Measure the rates that shares are of."""
        s, is_cuda = self.sizes, self.device.type == "cuda"
        source = torch.randint(256, (s.copy_bytes,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.copy_rate = 2 * s.copy_bytes / self.kernel_seconds(lambda: target.copy_(source))
        host = torch.empty(s.copy_bytes // 8, dtype=torch.uint8, pin_memory=is_cuda)
        part = source[: len(host)]
        self.to_host_rate = len(host) / self.seconds(lambda: host.copy_(part, non_blocking=True))
        self.to_device_rate = len(host) / self.seconds(lambda: part.copy_(host, non_blocking=True))
        a, b = torch.randn(2, s.product, s.product, dtype=s.dtype, device=self.device)
        self.product_rate = 2 * s.product**3 / self.kernel_seconds(lambda: a @ b)

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
    ) -> TorchRunner:
        """Open one with room for every measure but the longest contexts."""
        s = self.sizes
        room = max(
            num_blocks([s.context + s.chain] * max(s.batches)), num_blocks([s.prefill]),
            num_blocks([s.hand_over]), num_blocks([s.stream_tokens] * s.streams),
        )  # fmt: skip
        return TorchRunner(
            s.model, self.weights, num_blocks=room, max_step_tokens=max(s.prefill, s.streams),
            max_samples=max(s.streams, *s.batches), kernels=kernels, deterministic=deterministic,
        )  # fmt: skip

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


def opened(*, is_dry: bool) -> Subject:
    """Open what is measured, its ceilings known: on the GPU, or where there is none on the CPU."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    subject = Subject(DRY if is_dry else FULL, device)
    subject.measure_ceilings()
    return subject


def captured(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return what replays the kernels of a run, which writes where it wrote; it runs once before.

    Without CUDA, the run itself.
    """
    if device.type != "cuda":
        return run
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # compiles what is not compiled
        run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


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
