"""How fast KV leaves a device and comes back: through the host, and by another process."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from bench.device.gpu_reader import other_process
from bench.device.gpu_report import GIGA, Figure
from bench.device.gpu_subject import Subject
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.triton import blocks as triton_blocks


def hand_over(subject: Subject) -> list[Figure]:
    count = subject.sizes.hand_over // BLOCK_SIZE
    runner = subject.runner()
    blocks = list(range(count))
    told, checksums = runner.export_blocks(blocks)
    out = subject.seconds(lambda: runner.export_blocks(blocks))
    back = subject.seconds(lambda: runner.admit_blocks(blocks, told, checksums))
    runner.close()
    rate = 2 * told.nbytes / (out + back)
    name = f"KV of {subject.sizes.hand_over} tokens out and back"
    return [
        Figure(
            name, rate / GIGA, "GB/s", "the copy to pinned memory", rate / subject.to_host_rate, 0.7
        ),
        Figure(
            "checksums of it", 100 * _checksum_seconds(subject, count) / (out + back), "% of time",
            wanted=1.0,
        ),
    ]  # fmt: skip


def hand_over_between_processes(subject: Subject) -> list[Figure]:
    """The same blocks through memory of the device, which another process reads (CUDA IPC)."""
    if subject.device.type != "cuda":
        return []
    count = subject.sizes.hand_over // BLOCK_SIZE
    runner = subject.runner()
    memory = runner.open_pages(count)
    pages, times = memory.take(count), []
    with other_process(memory, runner.kv_format, count, subject.device.index or 0) as taken_in:
        for _ in range(subject.sizes.warm_ups + subject.sizes.rounds):
            begun = time.perf_counter()
            checksums = runner.export_pages(range(count), pages).tolist()
            out = time.perf_counter() - begun
            back = taken_in([(p.offset, c) for p, c in zip(pages, checksums, strict=True)])
            times.append(out + back)
    runner.close()
    num_bytes = count * runner.kv_format.block_bytes
    rate = 2 * num_bytes / statistics.median(times[subject.sizes.warm_ups :])
    name = f"KV of {subject.sizes.hand_over} tokens out and into another process"
    return [Figure(name, rate / GIGA, "GB/s", "the copy on the device", rate / subject.copy_rate)]


def _checksum_seconds(subject: Subject, count: int) -> float:
    """What the device does more because blocks have checksums: both ways, kernels alone."""
    c = subject.sizes.model
    shape = (c.num_layers, 2, count, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
    pool = torch.randn(shape, dtype=subject.sizes.dtype, device=subject.device)
    index = torch.arange(count, dtype=torch.int32, device=subject.device)
    told = torch.empty_like(pool).view(count, *shape[:2], *shape[3:])
    where = torch.from_numpy(triton_blocks.addresses_of(told)).to(subject.device)
    gather = partial(triton_blocks.gather, pool, index, where, told.dtype)
    without, both = (
        subject.kernel_seconds(partial(gather, has_checksums=has)) for has in (False, True)
    )
    return max(both - without, 0.0) + subject.kernel_seconds(lambda: triton_blocks.checksums(told))
