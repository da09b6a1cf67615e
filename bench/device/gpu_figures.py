"""What `bench.gpu` measures: medians of synchronised runs, and the bytes that they must read."""

from __future__ import annotations

import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
import triton

from bench.device.gpu_batches import step
from bench.device.gpu_checks import MOST_DISTANCE, answers, check_moved
from bench.device.gpu_files import forget, read, write_model
from bench.device.gpu_gaps import Gaps
from bench.device.gpu_peers import static_cache_seconds
from bench.device.gpu_reader import other_process
from skerry_core.config import BLOCK_SIZE, EngineConfig, ModelConfig
from skerry_core.engine.engine import Engine
from skerry_core.kernels.torch.quantized import Matrix, NarrowWeights, QuantizedMatrix, narrowed
from skerry_core.kernels.triton import blocks as triton_blocks
from skerry_core.kernels.triton.attention import SPLIT_BLOCKS, Tiles, attend_split
from skerry_core.models.public_shapes import PUBLIC_SHAPES, random_weights
from skerry_core.models.torch_decoder import DecoderWeights
from skerry_core.models.torch_loading import load_decoder
from skerry_core.request import Request, SamplingParams
from skerry_core.runners.torch_gpu import Kernels, TorchRunner

GIGA, TERA = 1e9, 1e12
TINY = ModelConfig(
    architecture="llama", num_layers=1, hidden_size=32, intermediate_size=64, num_heads=2,
    num_kv_heads=1, head_dim=16, vocab_size=64, max_context=256, tied_embeddings=False,
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What is measured at which size; tokens unless said otherwise."""

    model: ModelConfig
    dtype: torch.dtype
    context: int
    batches: tuple[int, ...]  # rows that decode
    prefill: int
    streams: int
    stream_tokens: int  # of each stream, at most
    hand_over: int
    loaded: ModelConfig  # from a file
    long_rows: int
    long_context: int
    copy_bytes: int
    product: int  # rows and columns of the matrices
    rounds: int
    repeats: int  # of a short kernel, in a round: what the host adds to one is not its own


FULL = Sizes(
    model=replace(PUBLIC_SHAPES["llama-3.1-8b"], max_context=16_384), dtype=torch.bfloat16,
    context=1000, batches=(1, 64), prefill=8192, streams=200, stream_tokens=400, hand_over=4096,
    loaded=replace(PUBLIC_SHAPES["llama-3.2-1b"], max_context=4096),
    long_rows=16, long_context=32_768, copy_bytes=4 << 30, product=8192, rounds=7, repeats=10,
)  # fmt: skip
DRY = Sizes(
    model=TINY, dtype=torch.float32, context=70, batches=(1, 2), prefill=4, streams=2,
    stream_tokens=2, hand_over=128, loaded=TINY, long_rows=1, long_context=300,
    copy_bytes=1 << 16, product=32, rounds=1, repeats=1,
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    of: str = ""  # what bounds it
    share: float | None = None  # of that bound
    wanted: float | None = None  # share, or value where there is no bound

    def line(self) -> str:
        told = f"{self.name}: {self.value:.4g} {self.unit}"
        if self.share is not None:
            told += f", {self.share:.0%} of {self.of}"
        return told if self.wanted is None else f"{told} (wanted {self.wanted:g})"


class Bench:
    """One model's weights on one device, and runners over them, one at a time."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes = sizes
        self.device = device
        self._weights: DecoderWeights = random_weights(sizes.model, device, sizes.dtype)
        self._copy = self._product = self._to_host = self._to_device = 0.0  # ceilings, per second

    def describe(self) -> dict[str, str]:
        is_cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if is_cuda else platform.processor()
        return {
            "name": name, "torch": torch.__version__, "cuda": str(torch.version.cuda),
            "triton": triton.__version__, "python": platform.python_version(),
        }  # fmt: skip

    def measures(self) -> Iterator[tuple[str, Callable[[], list[Figure]]]]:
        yield "ceilings", self.ceilings
        yield "answers", self.answers
        yield "decode and prefill", lambda: self.steps("triton")
        yield "streams", self.streams
        yield "hand-over", self.hand_over
        yield "hand-over between processes", self.hand_over_between_processes
        yield "attention alone", self.attention
        yield "decode and prefill, deterministic", lambda: self.steps("triton", True)
        yield "loading", self.loading
        yield "int8", lambda: self.quantized("int8")
        yield "int4", lambda: self.quantized("int4")
        yield "fp8", lambda: self.quantized("fp8")
        yield "peer: torch SDPA", lambda: self.steps("torch")
        yield "peer: transformers", self.transformers

    # --- ceilings --------------------------------------------------------------------------------

    def ceilings(self) -> list[Figure]:
        s = self.sizes
        source = torch.empty(s.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self._copy = 2 * s.copy_bytes / self.kernel_seconds(lambda: target.copy_(source))
        host = torch.empty(
            s.copy_bytes // 8, dtype=torch.uint8, pin_memory=self.device.type == "cuda"
        )
        part = source[: len(host)]
        self._to_host = len(host) / self.seconds(lambda: host.copy_(part, non_blocking=True))
        self._to_device = len(host) / self.seconds(lambda: part.copy_(host, non_blocking=True))
        a = torch.randn(s.product, s.product, dtype=s.dtype, device=self.device)
        self._product = 2 * s.product**3 / self.kernel_seconds(lambda: a @ a)
        return [
            Figure("copy on the device, read and written", self._copy / GIGA, "GB/s"),
            Figure("copy to pinned memory", self._to_host / GIGA, "GB/s"),
            Figure("copy from pinned memory", self._to_device / GIGA, "GB/s"),
            Figure("matrix product", self._product / TERA, "TFLOPS"),
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
        for rows in s.batches:
            seconds = self.seconds(partial(runner.execute, step(rows, 1, s.context)))
            least = (self.weight_bytes() + self.kv_bytes(rows * s.context)) / self._copy
            figures.append(
                Figure(
                    f"decode, {rows} rows, {label}",
                    1e3 * seconds,
                    "ms",
                    "bytes over bandwidth",
                    least / seconds,
                    (0.9 if rows == 1 else 0.8) if wanted else None,
                )
            )
        batch = step(1, s.prefill, s.prefill)
        seconds = self.seconds(lambda: runner.execute(batch))
        least = self.prefill_operations(s.prefill) / self._product
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
        weights = in_form(self._weights, form)
        runner = TorchRunner(
            s.model, weights, num_blocks=self.blocks(1, max(s.context, s.prefill)),
            max_step_tokens=s.prefill, kernels="triton",
        )  # fmt: skip
        batch = step(1, 1, s.context)
        seconds = self.seconds(lambda: runner.execute(batch))
        least = (weight_bytes(weights) + self.kv_bytes(s.context)) / self._copy
        figures = [
            Figure(
                f"decode, 1 row, {form}", 1e3 * seconds, "ms", "bytes over bandwidth",
                least / seconds,
            )
        ]  # fmt: skip
        if form == "fp8":
            batch = step(1, s.prefill, s.prefill)
            seconds = self.seconds(lambda: runner.execute(batch))
            least = self.prefill_operations(s.prefill) / self._product
            name = f"prefill of {s.prefill}, fp8"
            of = "the matrix product's rate, not in fp8"
            figures.append(Figure(name, s.prefill / seconds, "tok/s", of, least / seconds))
        runner.close()
        return figures

    def streams(self) -> list[Figure]:
        """Concurrent streams through the whole engine, lengths like a chat's (ShareGPT: prompts of
        some 220 tokens, answers of some 200, both with long tails)."""
        s, rng = self.sizes, random.Random(0)
        runner = self.runner()
        engine = Engine(
            runner, EngineConfig(max_running=s.streams, max_step_tokens=s.prefill),
            model_key=b"bench",
        )  # fmt: skip
        runner.warm_up(lambda what, share: None)
        for index in range(s.streams):
            prompt, answer = (
                max(1, min(int(rng.lognormvariate(4.9, 1.0)), s.stream_tokens)) for _ in range(2)
            )
            ids = tuple(rng.randrange(s.model.vocab_size) for _ in range(prompt))
            style = SamplingParams(max_tokens=answer, temperature=0.8, top_p=0.95, seed=index)
            engine.add(Request(id=str(index), prompt_ids=ids, sampling=style))
        gaps, made, begun = Gaps(self.device), 0, time.perf_counter()
        with gaps.between_steps(runner):
            while engine.has_work:
                made += sum(len(output.token_ids) for output in engine.step())
        seconds = time.perf_counter() - begun
        self._wait()
        idle = gaps.seconds / seconds
        engine.close()
        return [
            Figure(f"{s.streams} streams", made / seconds, "tok/s", wanted=17_200.0),
            Figure("the device between steps", 100 * idle, "% of time", wanted=3.0),
        ]

    # --- parts -----------------------------------------------------------------------------------

    def loading(self) -> list[Figure]:
        """A safetensors file to the device, with the page cache empty and full of it."""
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(Path(folder), self.sizes.loaded)
            size = path.stat().st_size

            def load() -> None:
                load_decoder(path, self.device, self.sizes.dtype, keeps_quantized=True)
                self._wait()

            load()  # makes room, once
            warm = size / self.seconds(load)
            cold, disk = (size / _cold_seconds(path, run) for run in (load, partial(read, path)))
        bound = min(disk, self._to_device)
        return [
            Figure("disk", disk / GIGA, "GB/s"),
            Figure(
                "weights from disk", cold / GIGA, "GB/s", "the slower of disk and bus",
                cold / bound, 0.8,
            ),
            Figure(
                "weights from the page cache", warm / GIGA, "GB/s",
                "the copy from pinned memory", warm / self._to_device,
            ),
        ]  # fmt: skip

    def hand_over(self) -> list[Figure]:
        count = self.sizes.hand_over // BLOCK_SIZE
        runner = self.runner()
        blocks = list(range(count))
        told, checksums = runner.export_blocks(blocks)
        out = self.seconds(lambda: runner.export_blocks(blocks))
        back = self.seconds(lambda: runner.admit_blocks(blocks, told, checksums))
        runner.close()
        rate = 2 * told.nbytes / (out + back)
        name = f"KV of {self.sizes.hand_over} tokens out and back"
        return [
            Figure(
                name, rate / GIGA, "GB/s", "the copy to pinned memory", rate / self._to_host, 0.7
            ),
            Figure(
                "checksums of it", 100 * self._checksum_seconds(count) / (out + back), "% of time",
                wanted=1.0,
            ),
        ]  # fmt: skip

    def hand_over_between_processes(self) -> list[Figure]:
        """The same blocks through memory of the device, which another process reads (CUDA IPC)."""
        if self.device.type != "cuda":
            return []
        count = self.sizes.hand_over // BLOCK_SIZE
        runner = self.runner()
        memory = runner.open_pages(count)
        pages, times = memory.take(count), []
        with other_process(memory, runner.kv_format, count, self.device.index or 0) as taken_in:
            for _ in range(self.sizes.rounds + 2):
                begun = time.perf_counter()
                checksums = runner.export_pages(range(count), pages).tolist()
                out = time.perf_counter() - begun
                back = taken_in([(p.offset, c) for p, c in zip(pages, checksums, strict=True)])
                times.append(out + back)
        runner.close()
        num_bytes = count * runner.kv_format.block_bytes
        rate = 2 * num_bytes / statistics.median(times[2:])
        name = f"KV of {self.sizes.hand_over} tokens out and into another process"
        return [Figure(name, rate / GIGA, "GB/s", "the copy on the device", rate / self._copy)]

    def _checksum_seconds(self, count: int) -> float:
        """What the device does more because blocks have checksums: both ways, kernels alone."""
        c = self.sizes.model
        shape = (c.num_layers, 2, count, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
        pool = torch.randn(shape, dtype=self.sizes.dtype, device=self.device)
        index = torch.arange(count, dtype=torch.int32, device=self.device)
        told = torch.empty_like(pool).view(count, *shape[:2], *shape[3:])
        without, both = (
            self.kernel_seconds(partial(triton_blocks.gather, pool, index, told, has_checksums=has))
            for has in (False, True)
        )
        return max(both - without, 0.0) + self.kernel_seconds(lambda: triton_blocks.checksums(told))

    def attention(self) -> list[Figure]:
        s, c = self.sizes, self.sizes.model
        per_row = -(-s.long_context // BLOCK_SIZE)
        shape = (2, s.long_rows * per_row, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
        kv = torch.randn(shape, dtype=s.dtype, device=self.device)
        rows = torch.arange(s.long_rows, dtype=torch.int32, device=self.device)
        tables = torch.arange(s.long_rows * per_row, dtype=torch.int32, device=self.device)
        positions = torch.full_like(rows, s.long_context - 1)
        q = torch.randn(s.long_rows, c.num_heads, c.head_dim, dtype=s.dtype, device=self.device)
        out, tiles = torch.empty_like(q), Tiles(rows, rows, torch.ones_like(rows), longest=1)
        splits = -(-per_row // SPLIT_BLOCKS)

        def run() -> None:
            attend_split(
                q, kv, tables.view(s.long_rows, -1), positions, tiles, out, num_splits=splits,
                window=None,
            )  # fmt: skip

        rate = kv.nbytes / self.kernel_seconds(run)
        name = f"attention, {s.long_rows} rows, context {s.long_context}"
        return [Figure(name, rate / GIGA, "GB/s", "the copy's", rate / self._copy, 0.85)]

    def transformers(self) -> list[Figure]:
        s = self.sizes
        self._weights = random_weights(TINY, self.device, s.dtype)  # room for theirs
        figures = []
        for rows in s.batches:
            seconds = static_cache_seconds(
                s.model, rows, s.context, s.dtype, self.device, self.seconds
            )
            if seconds is not None:
                name = f"decode, {rows} rows, transformers' static cache, compiled"
                figures.append(Figure(name, 1e3 * seconds, "ms"))
        return figures

    # --- sizes -----------------------------------------------------------------------------------

    def runner(self, kernels: Kernels = "triton", deterministic: bool = False) -> TorchRunner:
        s = self.sizes
        room = max(
            self.blocks(max(s.batches), s.context), self.blocks(1, s.prefill),
            self.blocks(1, s.hand_over), self.blocks(s.streams, 2 * s.stream_tokens),
        )  # fmt: skip
        return TorchRunner(
            s.model, self._weights, num_blocks=room, max_step_tokens=max(s.prefill, s.streams),
            max_samples=max(s.streams, *s.batches), kernels=kernels, deterministic=deterministic,
        )  # fmt: skip

    def blocks(self, rows: int, context: int) -> int:
        return rows * -(-context // BLOCK_SIZE)

    def weight_bytes(self) -> int:
        return weight_bytes(self._weights)

    def kv_bytes(self, tokens: int) -> int:
        c = self.sizes.model
        return tokens * c.num_layers * 2 * c.num_kv_heads * c.head_dim * self.sizes.dtype.itemsize

    def prefill_operations(self, tokens: int) -> float:
        """Multiplications and additions of the layers' products, causal attention, one head row."""
        c = self.sizes.model
        parameters = weight_bytes(self._weights, has_head=False) // self.sizes.dtype.itemsize
        attention = 2 * tokens**2 * c.num_heads * c.head_dim * c.num_layers
        return 2 * tokens * parameters + attention

    def kernel_seconds(self, run: Callable[[], object]) -> float:
        """As `seconds`, of what the device does when the next one waits for it already."""
        return self.seconds(lambda: [run() for _ in range(self.sizes.repeats)]) / self.sizes.repeats

    def seconds(self, run: Callable[[], object]) -> float:
        """Median time of a run, after two that do not count."""
        times = []
        for index in range(self.sizes.rounds + 2):
            self._wait()
            begun = time.perf_counter()
            run()
            self._wait()
            if index >= 2:
                times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def weight_bytes(weights: DecoderWeights, *, has_head: bool = True) -> int:
    """Bytes that a step reads: all but the embedding, of which it looks up rows."""
    matrices = [m for w in weights.layers for m in (w.qkv, w.output, w.gate_up, w.down)]
    if has_head:
        matrices.append(weights.head)
    return sum(m.num_bytes if isinstance(m, QuantizedMatrix) else m.nbytes for m in matrices)


def in_form(weights: DecoderWeights, form: NarrowWeights) -> DecoderWeights:
    """The same matrices in fewer bits."""

    def formed(matrix: Matrix) -> QuantizedMatrix:
        return narrowed(cast(torch.Tensor, matrix), form)

    layers = tuple(
        replace(
            layer, qkv=formed(layer.qkv), output=formed(layer.output),
            gate_up=formed(layer.gate_up), down=formed(layer.down),
        )
        for layer in weights.layers
    )  # fmt: skip
    return replace(weights, layers=layers, head=formed(weights.head))


def _cold_seconds(path: Path, run: Callable[[], object]) -> float:
    """Time of a run that finds nothing of the file in the page cache."""
    forget(path)
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
