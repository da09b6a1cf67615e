"""What `bench.gpu` measures: medians of synchronised runs, and the bytes that they must read."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch

from bench.device.gpu_batches import step
from bench.device.gpu_checks import MOST_DISTANCE, answers, check_moved
from bench.device.gpu_files import forget, read, write_model
from bench.device.gpu_hand_over import hand_over, hand_over_between_processes
from bench.device.gpu_peers import static_cache_seconds
from bench.device.gpu_report import GIGA, TERA, Figure
from bench.device.gpu_sizes import TINY
from bench.device.gpu_streams import long_tail, streams
from bench.device.gpu_subject import Subject, in_form, weight_bytes
from bench.device.random_weights import random_weights
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.quantized import NarrowWeights
from skerry_core.kernels.triton.attention import SPLIT_BLOCKS, ContextPieces, Tiles, attend_split
from skerry_core.runners.torch.decoder_loading import load_decoder
from skerry_core.runners.torch.torch_runner import Kernels, TorchRunner


class Bench(Subject):
    """Every measure of one model on one device."""

    def measures(self) -> Iterator[tuple[str, Callable[[], list[Figure]]]]:
        yield "ceilings", self.ceilings
        yield "answers", self.answers
        yield "decode and prefill", lambda: self.steps("triton")
        yield "streams", partial(streams, self)
        yield "long tail", partial(long_tail, self)
        yield "hand-over", partial(hand_over, self)
        yield "hand-over between processes", partial(hand_over_between_processes, self)
        yield "attention alone", self.attention
        yield "decode and prefill, deterministic", lambda: self.steps("triton", True)
        yield "loading", self.loading
        yield "int8", lambda: self.quantized("int8")
        yield "int4", lambda: self.quantized("int4")
        yield "fp8", lambda: self.quantized("fp8")
        yield "bf12", lambda: self.quantized("bf12")
        yield "peer: torch SDPA", lambda: self.steps("torch")
        yield "peer: transformers", self.transformers

    # --- ceilings --------------------------------------------------------------------------------

    def ceilings(self) -> list[Figure]:
        s = self.sizes
        source = torch.empty(s.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.copy_rate = 2 * s.copy_bytes / self.kernel_seconds(lambda: target.copy_(source))
        host = torch.empty(
            s.copy_bytes // 8, dtype=torch.uint8, pin_memory=self.device.type == "cuda"
        )
        part = source[: len(host)]
        self.to_host_rate = len(host) / self.seconds(lambda: host.copy_(part, non_blocking=True))
        self.to_device_rate = len(host) / self.seconds(lambda: part.copy_(host, non_blocking=True))
        a = torch.randn(s.product, s.product, dtype=s.dtype, device=self.device)
        self.product_rate = 2 * s.product**3 / self.kernel_seconds(lambda: a @ a)
        return [
            Figure("copy on the device, read and written", self.copy_rate / GIGA, "GB/s"),
            Figure("copy to pinned memory", self.to_host_rate / GIGA, "GB/s"),
            Figure("copy from pinned memory", self.to_device_rate / GIGA, "GB/s"),
            Figure("matrix product", self.product_rate / TERA, "TFLOPS"),
        ]

    # --- answers ---------------------------------------------------------------------------------

    def answers(self) -> list[Figure]:
        """Raises RuntimeError when they are wrong; see `gpu_checks`."""
        context = min(self.sizes.context, self.sizes.prefill)
        plain = self.runner(kernels="torch")
        expected = answers(plain, context)
        plain.close()
        ours = self.runner()
        told = answers(ours, context)
        check_moved(ours, context, told.decode)
        ours.close()
        distance = told.distance(expected)
        if not distance <= MOST_DISTANCE:
            raise RuntimeError(f"logits are {distance:.2g} of their spread away from plain torch's")
        name = "logits' distance from plain torch's"
        return [Figure(name, distance, "of their spread", wanted=MOST_DISTANCE)]

    # --- steps -----------------------------------------------------------------------------------

    def steps(self, kernels: Kernels, deterministic: bool = False) -> list[Figure]:
        s = self.sizes
        runner = self.runner(kernels=kernels, deterministic=deterministic)
        label = f"{kernels}, deterministic" if deterministic else kernels
        wanted = kernels == "triton" and not deterministic
        figures = []
        for rows, way in product(s.batches, ("", ", sampled") if wanted else ("",)):
            batch = step(rows, 1, s.context, is_sampled=bool(way))
            seconds = self.seconds(partial(runner.execute, batch))
            least = (self.weight_bytes() + self.kv_bytes(rows * s.context)) / self.copy_rate
            figures.append(
                Figure(
                    f"decode, {rows} rows, {label}{way}",
                    1e3 * seconds,
                    "ms",
                    "bytes over bandwidth",
                    least / seconds,
                    (0.9 if rows == 1 else 0.8) if wanted else None,
                )
            )
        batch = step(1, s.prefill, s.prefill)
        seconds = self.seconds(lambda: runner.execute(batch))
        least = self.prefill_operations(s.prefill) / self.product_rate
        figures.append(
            Figure(
                f"prefill of {s.prefill}, {label}",
                s.prefill / seconds,
                "tok/s",
                "the matrix product's rate",
                least / seconds,
                0.7 if wanted else None,
            )
        )
        runner.close()
        return figures

    def quantized(self, form: NarrowWeights) -> list[Figure]:
        """Decoding one row by weights of 4 or 8 bits, and prefill by those of fp8."""
        s = self.sizes
        weights = in_form(self.weights, form)
        runner = TorchRunner(
            s.model, weights, num_blocks=self.blocks(1, max(s.context, s.prefill)),
            max_step_tokens=s.prefill, kernels="triton",
        )  # fmt: skip
        batch = step(1, 1, s.context)
        seconds = self.seconds(lambda: runner.execute(batch))
        least = (weight_bytes(weights) + self.kv_bytes(s.context)) / self.copy_rate
        figures = [
            Figure(
                f"decode, 1 row, {form}", 1e3 * seconds, "ms", "bytes over bandwidth",
                least / seconds,
            )
        ]  # fmt: skip
        if form == "fp8":
            batch = step(1, s.prefill, s.prefill)
            seconds = self.seconds(lambda: runner.execute(batch))
            least = self.prefill_operations(s.prefill) / self.product_rate
            name = f"prefill of {s.prefill}, fp8"
            of = "the matrix product's rate, not in fp8"
            figures.append(Figure(name, s.prefill / seconds, "tok/s", of, least / seconds))
        runner.close()
        return figures

    # --- parts -----------------------------------------------------------------------------------

    def loading(self) -> list[Figure]:
        """A safetensors file to the device, with the page cache empty and full of it."""
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(Path(folder), self.sizes.loaded)
            size = path.stat().st_size

            def load() -> None:
                load_decoder(path, self.device, self.sizes.dtype, keeps_quantized=True)
                self.wait()

            load()  # makes room, once
            warm = size / self.seconds(load)
            cold, disk = (size / _cold_seconds(path, run) for run in (load, partial(read, path)))
        bound = min(disk, self.to_device_rate)
        return [
            Figure("disk", disk / GIGA, "GB/s"),
            Figure(
                "weights from disk", cold / GIGA, "GB/s", "the slower of disk and bus",
                cold / bound, 0.8,
            ),
            Figure(
                "weights from the page cache", warm / GIGA, "GB/s",
                "the copy from pinned memory", warm / self.to_device_rate,
            ),
        ]  # fmt: skip

    def attention(self) -> list[Figure]:
        s, c = self.sizes, self.sizes.model
        per_row = -(-s.long_context // BLOCK_SIZE)
        shape = (2, s.long_rows * per_row, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
        kv = torch.randn(shape, dtype=s.dtype, device=self.device)
        rows = torch.arange(s.long_rows, dtype=torch.int32, device=self.device)
        tables = torch.arange(s.long_rows * per_row, dtype=torch.int32, device=self.device)
        positions = torch.full_like(rows, s.long_context - 1)
        q = torch.randn(s.long_rows, c.num_heads, c.head_dim, dtype=s.dtype, device=self.device)
        out, ones = torch.empty_like(q), torch.ones_like(rows)
        tiles = Tiles(rows, rows, ones, longest=1)
        splits = -(-per_row // SPLIT_BLOCKS)
        blocks = torch.nn.functional.pad(
            tables.view(s.long_rows, -1), (0, splits * SPLIT_BLOCKS - per_row)
        )
        count, each = s.long_rows * splits, torch.arange(splits, dtype=torch.int32).to(rows.device)
        pieces = ContextPieces(
            rows.repeat_interleave(splits), each.repeat(s.long_rows),
            blocks.view(-1, SPLIT_BLOCKS), rows * splits, ones[:1] * count,
            num_parts=count,
        )  # fmt: skip

        def run() -> None:
            attend_split(q, kv, positions, tiles, pieces, out, window=None)

        rate = kv.nbytes / self.kernel_seconds(run)
        name = f"attention, {s.long_rows} rows, context {s.long_context}"
        return [Figure(name, rate / GIGA, "GB/s", "the copy's", rate / self.copy_rate, 0.85)]

    def transformers(self) -> list[Figure]:
        s = self.sizes
        self.weights = random_weights(TINY, self.device, s.dtype)  # room for theirs
        figures = []
        for rows in s.batches:
            seconds = static_cache_seconds(
                s.model, rows, s.context, s.dtype, self.device, self.seconds
            )
            if seconds is not None:
                name = f"decode, {rows} rows, transformers' static cache, compiled"
                figures.append(Figure(name, 1e3 * seconds, "ms"))
        return figures


def _cold_seconds(path: Path, run: Callable[[], object]) -> float:
    """Time of a run that finds nothing of the file in the page cache."""
    forget(path)
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
