"""The calls that `bench.gpu_sweep` sweeps: those that a step of the model makes, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bench.device.gpu_figures import decode_attention
from bench.device.gpu_subject import Subject
from bench.device.sweep.launches import Change
from bench.device.sweep.trials import Case
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.quantized import Matrix, NarrowWeights, in_fewer_bits
from skerry_core.kernels.torch.torch_sampling import DRAW, MASS
from skerry_core.kernels.triton import attention as triton_attention
from skerry_core.kernels.triton import (
    few_products,
    invariant_product,
    split_attention,
    triton_ops,
    triton_sampling,
)
from skerry_core.kernels.triton import matmul as triton_matmul
from skerry_core.runners.torch.triton_arrangement import tiles

_TILES = (  # of products with the same bits in any batch, by the most rows
    (16, "_FEW", ((16, 32, 4, 5), (16, 128, 4, 4), (16, 64, 8, 5), (16, 64, 4, 4), (16, 64, 4, 6))),
    (64, "_SOME", ((64, 32, 4, 5), (64, 128, 4, 4), (64, 128, 8, 4), (64, 64, 4, 3))),
    (1 << 30, "_MANY", ((128, 256, 8, 3), (256, 128, 8, 3), (128, 128, 8, 4), (64, 256, 8, 4))),
)
_LAYERS = 8  # whose matrices are multiplied by in turn: more than a cache holds


def cases(subject: Subject) -> list[tuple[str, Callable[[], Case]]]:
    """Return what makes each case, by name; those first that matter most."""
    few, many = min(subject.sizes.batches), max(subject.sizes.batches)
    forms: tuple[NarrowWeights, ...] = ("bf12", "int4", "fp8", "int8")
    found: list[tuple[str, Callable[[], Case]]] = []

    def add(name: str, make: Callable[[str], Case]) -> None:
        found.append((name, partial(make, name)))

    for rows in (many, few):
        add(f"attention, {rows} rows decode", partial(_decode_attention, subject, rows))
        add(f"product, deterministic, {rows} rows", partial(_product, subject, rows, None, True))
    for matrix in ("qkv", "gate_up", "down"):
        add(f"product, {matrix}, {few} rows", partial(_few_product, subject, few, matrix))
    add("attention, prefill", partial(_prefill_attention, subject))
    for rows in (subject.sizes.streams, few):
        add(f"sampling, {rows} rows", partial(_sampling, subject, rows))
    for form in forms:
        for rows in (few, many):
            add(f"product, {form}, {rows} rows", partial(_product, subject, rows, form, False))
    count = subject.sizes.prefill
    add("product, fp8, prefill", partial(_product, subject, count, "fp8", False))
    add("product, deterministic, prefill", partial(_product, subject, count, None, True))
    add(f"norms and activation, {many} rows", partial(_elementwise, subject, many))
    return found


def _decode_attention(subject: Subject, rows: int, name: str) -> Case:
    """Attend as decoding does, over several layers' KV."""
    inputs = decode_attention(
        subject, rows, subject.sizes.context, layers=min(4, subject.sizes.model.num_layers)
    )
    module = split_attention
    programs = [Change(module, "_PROGRAMS", n) for n in (256, 1024, 2048)]

    def call() -> Tensor:
        for kv in inputs.kv:
            module.attend_split(
                inputs.q, kv, inputs.positions, inputs.tiles, inputs.pieces, inputs.out,
                window=None, new=inputs.new, programs=module._PROGRAMS,
            )  # fmt: skip
        return inputs.out

    return Case(name, lambda: call, inputs.kv.nbytes / subject.copy_rate, programs)


def _prefill_attention(subject: Subject, name: str) -> Case:
    """Attend with all tokens of a prompt to those before them."""
    s, c, device = subject.sizes, subject.sizes.model, subject.device
    count, module = s.prefill, triton_attention
    blocks = -(-count // BLOCK_SIZE)
    shape = (2, blocks, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
    kv = torch.randn(shape, dtype=s.dtype, device=device)
    q = torch.randn(count, c.num_heads, c.head_dim, dtype=s.dtype, device=device)
    out = torch.empty_like(q)
    tables = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    positions = torch.arange(count, dtype=torch.int32, device=device)

    def prepare() -> Callable[[], Tensor]:
        most = module.tile_tokens(module.WHOLE_TILE, c.num_heads // c.num_kv_heads)
        host = tiles(np.zeros(1, np.int32), np.array([count], np.int32), np.array([True]), most)
        rows, starts, lengths = (torch.from_numpy(each).to(device) for each in host)
        cut = module.Tiles(rows, starts, lengths)

        def call() -> Tensor:
            module.attend_whole(q, kv, tables, positions, cut, out, window=None)
            return out

        return call

    operations = 2 * count**2 * c.num_heads * c.head_dim
    constants = [Change(module, "WHOLE_TILE", each) for each in (32, 64)]
    return Case(name, prepare, operations / subject.product_rate, constants)


def _sampling(subject: Subject, rows: int, name: str) -> Case:
    """Choose as a chat does."""
    device, vocabulary = subject.device, subject.sizes.model.vocab_size
    logits = 2 * torch.randn(rows, vocabulary, device=device)
    temperature, top_p = (torch.full((rows,), x, device=device) for x in (0.7, 0.95))
    nothing = torch.zeros(rows, dtype=torch.int32, device=device)
    seeds = torch.arange(rows, device=device)
    lowest = torch.full((rows,), -torch.inf, device=device)
    constants = [
        *(Change(triton_sampling, "_SLICE", n) for n in (4096, 16_384)),
        *(Change(triton_sampling, "_CHUNK", n) for n in (1024, 2048, 8192)),
    ]

    def call() -> Tensor:
        return triton_sampling.choose(
            logits, temperature, top_p, nothing, lowest, seeds, seeds, nothing, nothing - 1,
            searches=(MASS, DRAW),
        )  # fmt: skip

    return Case(name, lambda: call, logits.nbytes / subject.copy_rate, constants)


def _product(
    subject: Subject, rows: int, form: NarrowWeights | None, deterministic: bool, name: str
) -> Case:
    """Multiply by the widest and the longest matrices of some layers."""
    s, layers = subject.sizes, subject.weights.layers[:_LAYERS]
    linear = triton_matmul.invariant_linear if deterministic else triton_matmul.linear
    pairs: list[tuple[Tensor, Matrix]] = []
    num_bytes, operations = 0, 0
    for matrix in (m for layer in layers for m in (layer.gate_up, layer.down)):
        assert isinstance(matrix, Tensor)
        outputs, inner = matrix.shape
        held: Matrix = matrix if form is None else in_fewer_bits(matrix, form)
        x = torch.randn(rows, inner, dtype=s.dtype, device=subject.device)
        pairs.append((x, held))
        num_bytes += held.nbytes if isinstance(held, Tensor) else held.num_bytes
        num_bytes += rows * (outputs + inner) * s.dtype.itemsize
        operations += 2 * rows * outputs * inner

    def call() -> Tensor:
        return torch.cat([linear(x, matrix, None).flatten() for x, matrix in pairs])

    least = max(num_bytes / subject.copy_rate, operations / subject.product_rate)
    return Case(name, lambda: call, least, _invariant_tiles(rows) if deterministic else ())


def _invariant_tiles(rows: int) -> list[Change]:
    """Return other tiles for so many rows: rows, outputs, warps and stages."""
    module = invariant_product
    name, shapes = next((name, shapes) for most, name, shapes in _TILES if rows <= most)
    return [Change(module, name, module.TileShape(*shape)) for shape in shapes]


def _few_product(subject: Subject, rows: int, matrix: str, name: str) -> Case:
    """Multiply as a layer of few rows does, with what stands before and behind."""
    s, layers = subject.sizes, subject.weights.layers[:_LAYERS]
    matrices = [cast(Tensor, getattr(layer, matrix)) for layer in layers]
    outputs, inner = matrices[0].shape
    x = torch.randn(rows, inner, dtype=s.dtype, device=subject.device)
    stream = torch.randn(rows, outputs, dtype=s.dtype, device=subject.device)
    gain = torch.ones(inner, dtype=s.dtype, device=subject.device)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "qkv": lambda weight: few_products.normed_linear(x, gain, 1e-5, weight, None),
        "gate_up": lambda weight: few_products.normed_swiglu(x, gain, 1e-5, weight),
        "down": lambda weight: few_products.linear_onto(x, weight, None, stream),
    }

    def call() -> Tensor:
        return torch.stack([calls[matrix](weight) for weight in matrices])

    num_bytes = sum(weight.nbytes for weight in matrices)
    return Case(name, lambda: call, num_bytes / subject.copy_rate)


def _elementwise(subject: Subject, rows: int, name: str) -> Case:
    """Norm and gate as a layer does, several times."""
    s, c = subject.sizes, subject.sizes.model
    sizes: Sequence[int] = c.hidden_size, c.hidden_size, 2 * c.intermediate_size
    x, branch, gate_up = (
        torch.randn(rows, size, dtype=s.dtype, device=subject.device) for size in sizes
    )
    weight = torch.ones(c.hidden_size, dtype=s.dtype, device=subject.device)

    def call() -> Tensor:
        made = [
            (*triton_ops.add_rms_norm(x, branch, weight, 1e-5), triton_ops.swiglu(gate_up))
            for _ in range(_LAYERS)
        ]
        normed, total, gated = made[-1]
        return torch.cat([normed.flatten(), total.flatten(), gated.flatten()])

    num_bytes = 4 * x.nbytes + 1.5 * gate_up.nbytes
    return Case(name, lambda: call, _LAYERS * num_bytes / subject.copy_rate)
