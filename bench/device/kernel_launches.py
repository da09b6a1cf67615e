"""What launches each kernel as the runner does: in bfloat16, in the shapes of Llama-3.1-8B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from skerry_core.kernels.torch.lossless import encoded
from skerry_core.kernels.torch.quantized import (
    FP8_CAPABILITY,
    NARROW_DTYPES,
    Narrow,
    Rounded,
    narrowed,
)
from skerry_core.kernels.torch.torch_sampling import COUNT, DRAW, MASS
from skerry_core.kernels.triton import attention as triton_attention
from skerry_core.kernels.triton import blocks as triton_blocks
from skerry_core.kernels.triton import (
    dependent_launch,
    few_products,
    split_attention,
    triton_ops,
    triton_sampling,
)
from skerry_core.kernels.triton import matmul as triton_matmul
from skerry_core.kernels.triton.lossless import decoded

HEADS, KV_HEADS, WIDTH, HIDDEN, VOCAB = 32, 8, 128, 4096, 128_256
TOKENS, NUM_BLOCKS = 16, 4
HALVED = "groups of 16"  # in the name of a variant


def launches_of(capability: int) -> dict[str, Callable[[], None]]:
    """Return what launches each variant's kernels."""
    half, single = torch.bfloat16, torch.float32
    launches: dict[str, Callable[[], None]] = {
        "decode": lambda: launch_decode(half, capability),
        "decode, windows and norms": lambda: launch_decode(
            half, capability, window=4096, is_normed=True
        ),
        "decode, KV in int8": lambda: launch_decode(half, capability, narrow="int8"),
        "attention": lambda: launch_attention(half),
        "operations": lambda: launch_operations(half),
        "few rows": lambda: launch_few_products(1, capability),
        "few rows, 16": lambda: launch_few_products(16, capability),
        "weights in int8": lambda: launch_narrow_products("int8", (1, 65)),
        "weights in int8, 16 rows": lambda: launch_narrow_products("int8", (16,)),
        "weights in int8, 64 rows": lambda: launch_narrow_products("int8", (32, 64)),
        f"weights in int8, {HALVED}": lambda: launch_narrow_products("int8", (1, 65), halved=True),
        f"weights in int8, {HALVED}, 64 rows": lambda: launch_narrow_products(
            "int8", (16, 32, 64), halved=True
        ),
        "weights in int4": lambda: launch_narrow_products("int4", (1, 65)),
        "weights in int4, 16 rows": lambda: launch_narrow_products("int4", (16,)),
        "weights in int4, 64 rows": lambda: launch_narrow_products("int4", (32, 64)),
        "sampling": launch_sampling,
        "weights in bf12": launch_lossless_products,
        "windows and norms": lambda: launch_attention(half, window=4096, is_normed=True),
        "float32": lambda: launch_attention(single),
        "operations, float32": lambda: launch_operations(single),
        "KV in int8": lambda: launch_attention(half, narrow="int8"),
    }
    if capability >= 10 * FP8_CAPABILITY[0] + FP8_CAPABILITY[1]:
        launches["decode, KV in fp8"] = lambda: launch_decode(half, capability, narrow="fp8")
        launches["KV in fp8"] = lambda: launch_attention(half, narrow="fp8")
        launches["weights in fp8"] = lambda: launch_narrow_products("fp8", (1, 65))
        launches["weights in fp8, 64 rows"] = lambda: launch_narrow_products("fp8", (16, 32, 64))
    return launches


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@dataclass(frozen=True)
class _Attention:
    """What attention is launched over."""

    pool: Tensor
    stored: Tensor  # `pool`, or what of it is in 8 bits
    scales: Tensor | None
    heads: Tensor
    new: triton_ops.NewHeads
    out: Tensor

    @classmethod
    def of(cls, dtype: torch.dtype, narrow: Narrow | None, *, is_normed: bool) -> _Attention:
        pool = torch.zeros(2, 2, NUM_BLOCKS, KV_HEADS, 64, WIDTH, dtype=dtype)
        scales = None if narrow is None else torch.zeros(pool.shape[:-1])
        stored = pool if narrow is None else pool.to(NARROW_DTYPES[narrow])
        heads = torch.zeros(TOKENS, HEADS + 2 * KV_HEADS, WIDTH, dtype=dtype)
        cos, norm = torch.zeros(128, WIDTH // 2), heads[0, 0] if is_normed else None
        new = triton_ops.NewHeads(ints(TOKENS), (cos, cos), norm, norm)
        return cls(pool, stored, scales, heads, new, heads[:, :HEADS].contiguous())

    def split(self, window: int | None, new: triton_ops.NewHeads | None) -> None:
        pieces = split_attention.ContextPieces(
            ints(3), ints(3), ints(3, 4), ints(2), ints(1), ints(3, KV_HEADS), num_parts=3
        )
        tiles = triton_attention.Tiles(ints(2), ints(2), ints(2))
        split_attention.attend_split(
            self.heads, self.stored[0], ints(TOKENS), tiles, pieces, self.out,
            window=window, scales=None if self.scales is None else self.scales[0], new=new,
        )  # fmt: skip


def launch_decode(
    dtype: torch.dtype,
    capability: int,
    *,
    window: int | None = None,
    is_normed: bool = False,
    narrow: Narrow | None = None,
) -> None:
    """Attend as a step does that only decodes."""
    inputs = _Attention.of(dtype, narrow, is_normed=is_normed)
    with patch.object(dependent_launch, "overlaps", lambda device: capability >= 90):
        inputs.split(window, inputs.new)


def launch_attention(
    dtype: torch.dtype,
    *,
    window: int | None = None,
    is_normed: bool = False,
    narrow: Narrow | None = None,
) -> None:
    """Attend as other steps do, and move blocks."""
    inputs = _Attention.of(dtype, narrow, is_normed=is_normed)
    stored, scales = inputs.stored, inputs.scales
    own = None if scales is None else scales[0]
    heads, kv, positions = inputs.heads, stored[0], ints(TOKENS)
    triton_ops.rotate_and_store(heads, kv, positions, inputs.new, scales=own)
    inputs.split(window, None)
    tiles = triton_attention.Tiles(ints(2), ints(2), ints(2))
    whole = heads, kv, ints(2, 9), positions, tiles, inputs.out
    triton_attention.attend_whole(*whole, window=window, scales=own)
    blocks = inputs.pool.movedim(2, 0).contiguous()
    addresses = torch.zeros(NUM_BLOCKS, dtype=torch.int64)
    triton_blocks.gather(stored, ints(NUM_BLOCKS), addresses, dtype, scales)
    triton_blocks.scatter(stored, ints(NUM_BLOCKS), addresses, dtype, scales)
    triton_blocks.checksums(blocks)
    triton_blocks.collect(addresses, blocks)


def launch_operations(dtype: torch.dtype) -> None:
    x = torch.zeros(TOKENS, HIDDEN, dtype=dtype)
    triton_ops.rms_norm(x, x[0], 1e-5)
    triton_ops.add_rms_norm(x, x, x[0], 1e-5)
    triton_ops.swiglu(x)
    for tokens in (1, 64, 65):
        triton_matmul.invariant_linear(x[:1].expand(tokens, -1), x, None)


def launch_few_products(tokens: int, capability: int) -> None:
    x = torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16)
    weight = torch.zeros(64, HIDDEN, dtype=torch.bfloat16)
    with patch.object(dependent_launch, "overlaps", lambda device: capability >= 90):
        few_products.normed_linear(x, x[0], 1e-5, weight, weight[:, 0].contiguous())
        few_products.normed_swiglu(x, x[0], 1e-5, weight)
        few_products.linear_onto(x, weight, None, x[:, :64].contiguous())


def launch_lossless_products() -> None:
    x = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
    weight = encoded(torch.zeros(64, HIDDEN, dtype=torch.bfloat16))
    for tokens in (1, 64):
        triton_matmul.linear(x[:1].expand(tokens, -1), weight, None)
    decoded(weight, torch.bfloat16)


def launch_narrow_products(
    narrow: Rounded, token_counts: tuple[int, ...], *, halved: bool = False
) -> None:
    """Multiply; `halved` by groups of 16 with minima, as matrices of mixed formats become."""
    x = torch.zeros(1, HIDDEN, dtype=torch.bfloat16)
    weight = narrowed(torch.zeros(64, HIDDEN), narrow)
    weight = weight.widened() if halved else weight
    for tokens in token_counts:
        triton_matmul.linear(x.expand(tokens, -1), weight, None)


def launch_sampling() -> None:
    floats, longs = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    adjusted = torch.zeros(2, VOCAB)
    triton_ops.feed(ints(2), ints(2), longs)
    triton_sampling.choose(
        adjusted.bfloat16(), floats, floats, ints(2), floats, longs, longs, ints(2), ints(2),
        searches=(COUNT, MASS, DRAW), adjusted=adjusted,
    )  # fmt: skip
