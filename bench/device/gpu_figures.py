"""What `bench.gpu` measures: medians of synchronised runs, beside what bounds them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from bench.device import gpu_steps
from bench.device.gpu_batches import num_blocks
from bench.device.gpu_checks import MOST_DISTANCE, answers, check_moved
from bench.device.gpu_files import forget, read, write_model
from bench.device.gpu_hand_over import hand_over, hand_over_between_processes
from bench.device.gpu_jax import jax_steps
from bench.device.gpu_program import Part
from bench.device.gpu_ranks import divided
from bench.device.gpu_report import GIGA, TERA, Figure
from bench.device.gpu_streams import streams
from bench.device.gpu_subject import Subject
from bench.device.peers import gpu_peers
from bench.device.peers.gpu_compiled import Attention
from skerry_core.batch import Int32
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.triton.attention import Tiles
from skerry_core.kernels.triton.split_attention import ContextPieces, attend_split
from skerry_core.kernels.triton.triton_ops import NewHeads
from skerry_core.runners.torch.decoder_loading import load_decoder
from skerry_core.runners.torch.triton_arrangement import pieces_of


def parts(subject: Subject) -> list[Part]:
    """Return every part, those first whose figures are wanted most."""
    ours = partial(gpu_steps.decode, subject), partial(gpu_steps.prefill, subject)
    slower = partial(gpu_steps.decode, subject, deterministic=True)
    return [
        Part("ceilings", 10, partial(ceilings, subject)),
        Part("answers", 40, partial(check_answers, subject)),
        Part("decode", 30, ours[0]),
        Part("prefill", 15, ours[1]),
        Part("streams", 110, partial(streams, subject)),
        Part("long tail", 25, partial(gpu_steps.long_tail, subject)),
        Part("hand-over", 15, partial(hand_over, subject)),
        Part("hand-over between processes", 20, partial(hand_over_between_processes, subject)),
        Part("attention alone", 10, partial(attention, subject)),
        Part("deterministic decode", 25, slower),
        Part(
            "deterministic prefill", 20, partial(gpu_steps.prefill, subject, deterministic=True)
        ),
        Part("loading", 30, partial(loading, subject)),
        *(
            Part(f"weights in {form}", 20, partial(gpu_steps.quantized, subject, form))
            for form in ("bf12", "fp8", "int8", "int4")
        ),
        Part("ranks", 150, partial(divided, subject)),
        Part("jax", 120, partial(jax_steps, subject)),
        Part("peer: cuBLAS by shape", 15, partial(gpu_peers.products, subject)),
        Part("peer: torch decode", 15, partial(gpu_steps.decode, subject, "torch")),
        Part("peer: torch prefill", 15, partial(gpu_steps.prefill, subject, "torch")),
        *(
            Part(
                f"peer: compiled, {rows} rows, {attention}", 30,
                partial(gpu_peers.compiled, subject, rows, attention),
            )
            for attention in get_args(Attention)
            for rows in subject.sizes.batches
        ),
        *(
            Part(
                f"peer: transformers, {rows} rows", 60,
                partial(gpu_peers.transformers, subject, rows),
            )
            for rows in subject.sizes.batches
        ),
    ]  # fmt: skip


def ceilings(subject: Subject) -> list[Figure]:
    """Return the device's rates, which `measure_ceilings` left there."""
    return [
        Figure("copy on the device, read and written", subject.copy_rate / GIGA, "GB/s"),
        Figure("copy to pinned memory", subject.to_host_rate / GIGA, "GB/s"),
        Figure("copy from pinned memory", subject.to_device_rate / GIGA, "GB/s"),
        Figure("matrix product", subject.product_rate / TERA, "TFLOPS"),
    ]


def check_answers(subject: Subject) -> list[Figure]:
    """Raises RuntimeError when they are wrong; see `gpu_checks`."""
    context = min(subject.sizes.context, subject.sizes.prefill)
    plain = subject.runner(kernels="torch")
    expected = answers(plain, context)
    plain.close()
    ours = subject.runner()
    told = answers(ours, context)
    check_moved(ours, context, told.decode)
    ours.close()
    distance = told.distance(expected)
    if not distance <= MOST_DISTANCE:
        raise RuntimeError(f"logits are {distance:.2g} of their spread away from plain torch's")
    name = "logits' distance from plain torch's"
    return [Figure(name, distance, "of their spread", wanted=MOST_DISTANCE)]


def loading(subject: Subject) -> list[Figure]:
    """Load a safetensors file, with the page cache empty and full of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), subject.sizes.loaded)
        size = path.stat().st_size

        def load() -> None:
            load_decoder(path, subject.device, subject.sizes.dtype, keeps_quantized=True)
            subject.wait()

        load()  # makes room, once
        warm = size / subject.seconds(load)
        cold, disk = (size / _cold_seconds(path, run) for run in (load, partial(read, path)))
    bound = min(disk, subject.to_device_rate)
    return [
        Figure("disk", disk / GIGA, "GB/s"),
        Figure(
            "weights from disk", cold / GIGA, "GB/s", "the slower of disk and bus", cold / bound,
            0.8,
        ),
        Figure(
            "weights from the page cache", warm / GIGA, "GB/s", "the copy from pinned memory",
            warm / subject.to_device_rate,
        ),
    ]  # fmt: skip


def attention(subject: Subject) -> list[Figure]:
    """Attend as decoding does over long contexts, and do nothing else."""
    s = subject.sizes
    inputs = decode_attention(subject, s.long_rows, s.long_context)
    run = partial(
        attend_split, inputs.q, inputs.kv[0], inputs.positions, inputs.tiles, inputs.pieces,
        inputs.out, window=None, new=inputs.new,
    )  # fmt: skip
    rate = inputs.kv.nbytes / subject.kernel_seconds(run)
    name = f"attention, {s.long_rows} rows, context {s.long_context}"
    return [Figure(name, rate / GIGA, "GB/s", "the copy's", rate / subject.copy_rate, 0.85)]


@dataclass(frozen=True)
class DecodeAttention:
    """What `attend_split` takes where rows decode over contexts of one length, of some layers."""

    q: Tensor
    kv: Tensor  # [layers, 2, N, Hk, 64, D]
    positions: Tensor
    tiles: Tiles
    pieces: ContextPieces
    out: Tensor
    new: NewHeads


def decode_attention(
    subject: Subject, count: int, context: int, layers: int = 1
) -> DecodeAttention:
    s, c, device = subject.sizes, subject.sizes.model, subject.device
    per_row = num_blocks([context])
    shape = (layers, 2, count * per_row, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
    q = torch.randn(
        count, c.num_heads + 2 * c.num_kv_heads, c.head_dim, dtype=s.dtype, device=device
    )
    tables = np.arange(count * per_row, dtype=np.int32).reshape(count, per_row)
    rows, ones = np.arange(count, dtype=np.int32), np.ones(count, np.int32)
    positions = np.full(count, context - 1, np.int32)
    slots = tables[:, (context - 1) // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    angles = torch.rand(context, c.head_dim // 2, device=device)
    host = pieces_of((rows, rows, ones), positions, tables)
    arrivals = torch.zeros(len(host.tiles), c.num_kv_heads, dtype=torch.int32, device=device)

    def put(array: Int32) -> Tensor:
        return torch.from_numpy(array).to(device)

    return DecodeAttention(
        q, torch.randn(shape, dtype=s.dtype, device=device), put(positions),
        Tiles(put(rows), put(rows), put(ones)),
        ContextPieces(*map(put, host.arrays), arrivals=arrivals, num_parts=host.num_parts),
        torch.empty_like(q[:, : c.num_heads]), NewHeads(put(slots), (angles.cos(), angles.sin())),
    )  # fmt: skip


def _cold_seconds(path: Path, run: Callable[[], object]) -> float:
    """Time a run that finds nothing of the file in the page cache."""
    forget(path)
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
