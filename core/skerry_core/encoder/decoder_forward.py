"""A decoder's layers over a chunk of whole sequences, in one compiled call without the GIL.

For models that embed: no KV is kept, and a token may see those behind it. Products are `forward`'s,
in float32; sequences lie one after another without padding. A token's bits depend on its own
sequence only.
"""

from __future__ import annotations

import numpy as np
from numba import types

from skerry_core.encoder.forward import TILE, matmul
from skerry_core.encoder.ops import ROW_BYTES, exp_row, scale_row
from skerry_core.kernels.cpu.rowwise import activate, rms_norm, rope
from skerry_core.kernels.simd.aliases import Address, Float32, Int64
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.kernels.simd.memory import address_of, array_at
from skerry_core.kernels.simd.numba_math import kernel

# Columns of `layers`: addresses of vectors and of packed matrices, 0 for what a layer has not.
NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, OUT, POST_NORM = range(7)
FFN_NORM, GATE_UP, DOWN, FFN_POST_NORM = range(7, 11)
ROPE, BEFORE, AFTER = range(11, 14)  # rotary table or -1; tokens seen on each side
NUM_FIELDS = 14
# Of `sizes`.
HEADS, KV_HEADS, HEAD_DIM, ROTATED, INTERMEDIATE, ACTIVATION = range(6)
NUM_SIZES = 6

_MASKED = np.float32(-1e30)  # a score whose exp is 0
_F32 = np.float32


@kernel
def run_layers(
    hidden: Float32,  # f32[tokens, hidden]: embedded tokens; becomes their states
    starts: Int64,  # i64[sequences + 1]: where each begins, and the number of tokens
    layers: Int64,  # i64[layers, NUM_FIELDS]
    sizes: Int64,  # i64[NUM_SIZES]
    ropes: Float32,  # f32[tables, 2, positions, rotated / 2]: cosines and sines
    zeros: Float32,  # f32[>= the widest product, whole panels of scores]: where sums start
    final_norm: Float32,  # f32[hidden]
    norm_epsilon: float,
    attention_scale: float,
    scratch: Float32,  # f32[>= scratch_size(...)]
) -> None:
    """Run all layers and the last norm over some whole sequences."""
    tokens, size = hidden.shape
    epsilon = _F32(norm_epsilon)
    heads, kv_heads, head_dim = sizes[HEADS], sizes[KV_HEADS], sizes[HEAD_DIM]
    inner, nothing = sizes[INTERMEDIATE], address_of(zeros)
    queries, width = heads * head_dim, (heads + 2 * kv_heads) * head_dim
    normed = scratch[: tokens * size].reshape((tokens, size))
    wide = scratch[tokens * size :]
    qkv = wide[: tokens * width].reshape((tokens, width))
    context = wide[tokens * width : tokens * (width + queries)].reshape((tokens, queries))
    gate_up = wide[: tokens * 2 * inner].reshape((tokens, 2 * inner))  # in place of both
    rest = wide[tokens * max(width + queries, 2 * inner) :]
    row, vectors = size * 4, size // LANES

    for layer in range(layers.shape[0]):
        at = layers[layer]
        _norm_rows(hidden, at[NORM], epsilon, normed)
        matmul(
            address_of(normed), row, tokens, size, at[QKV],
            at[QKV_BIAS] if at[QKV_BIAS] != 0 else nothing, width // LANES,
            address_of(qkv), width * 4,
        )  # fmt: skip
        for s in range(starts.shape[0] - 1):
            first, last = starts[s], starts[s + 1]
            _rotate(qkv[first:last], at, sizes, ropes, epsilon)
            attend(
                qkv[first:last], heads, kv_heads, head_dim, _F32(attention_scale), at[BEFORE],
                at[AFTER], nothing, rest, context[first:last],
            )  # fmt: skip
        matmul(
            address_of(context), queries * 4, tokens, queries, at[OUT], nothing, vectors,
            address_of(normed), row,
        )  # fmt: skip
        _add(normed, at[POST_NORM], epsilon, hidden)
        _norm_rows(hidden, at[FFN_NORM], epsilon, normed)
        matmul(
            address_of(normed), row, tokens, size, at[GATE_UP], nothing, 2 * inner // LANES,
            address_of(gate_up), 8 * inner,
        )  # fmt: skip
        for t in range(tokens):
            activate(sizes[ACTIVATION], gate_up[t, :inner], gate_up[t, inner:])
        matmul(
            address_of(gate_up), 8 * inner, tokens, inner, at[DOWN], nothing, vectors,
            address_of(normed), row,
        )  # fmt: skip
        _add(normed, at[FFN_POST_NORM], epsilon, hidden)
    for t in range(tokens):
        rms_norm(hidden[t], final_norm, epsilon, hidden[t])


@kernel
def _norm_rows(x: Float32, weight: Address, epsilon: np.float32, out: Float32) -> None:
    weights = array_at(weight, (x.shape[1],), np.float32)
    for t in range(x.shape[0]):
        rms_norm(x[t], weights, epsilon, out[t])


@kernel
def _add(branch: Float32, norm: Address, epsilon: np.float32, hidden: Float32) -> None:
    """Add what a branch has computed, normed if it has a norm behind it."""
    if norm != 0:
        _norm_rows(branch, norm, epsilon, branch)
    for t in range(hidden.shape[0]):
        for d in range(hidden.shape[1]):
            hidden[t, d] += branch[t, d]


@kernel
def _rotate(qkv: Float32, at: Int64, sizes: Int64, ropes: Float32, epsilon: np.float32) -> None:
    """Norm the heads of queries and keys of one sequence, and rotate them, in place."""
    heads, head_dim = sizes[HEADS], sizes[HEAD_DIM]
    for t in range(qkv.shape[0]):
        for h in range(heads + sizes[KV_HEADS]):
            head = qkv[t, h * head_dim : (h + 1) * head_dim]
            norm = at[Q_NORM] if h < heads else at[K_NORM]
            if norm != 0:
                rms_norm(head, array_at(norm, (head_dim,), np.float32), epsilon, head)
            if at[ROPE] >= 0:
                table = ropes[at[ROPE]]
                rope(head[: sizes[ROTATED]], table[0, t], table[1, t])


@kernel
def attend(
    qkv: Float32,  # f32[tokens, (heads + 2 kv_heads) head_dim] of one sequence
    heads: int,
    kv_heads: int,
    head_dim: int,  # a multiple of 16
    scale: np.float32,
    before: int,  # tokens that a token sees before itself
    after: int,  # and behind itself
    zeros: Address,  # where sums start
    scratch: Float32,  # f32[>= padded (2 head_dim + TILE)]
    context: Float32,  # f32[tokens, heads head_dim], written
) -> None:
    """Attend with each token to those it sees; as many heads of queries share one of keys."""
    length, row = qkv.shape[0], qkv.shape[1] * 4
    padded = (length + LANES - 1) // LANES * LANES
    keys, values = scratch[: padded * head_dim], scratch[padded * head_dim :]
    scores = scratch[padded * 2 * head_dim : padded * (2 * head_dim + TILE)].reshape((TILE, padded))
    to_scores, score_row = address_of(scores), padded * 4
    for kv_head in range(kv_heads):
        column = (heads + kv_head) * head_dim
        for t in range(padded):  # keys as panels [head_dim, 16 tokens]
            base = t // LANES * head_dim * LANES + t % LANES
            for d in range(head_dim):
                keys[base + d * LANES] = qkv[t, column + d] if t < length else _F32(0.0)
        column += kv_heads * head_dim
        for t in range(length):  # values as panels [tokens, 16 dimensions]
            for d in range(head_dim):
                values[d // LANES * length * LANES + t * LANES + d % LANES] = qkv[t, column + d]
        group = heads // kv_heads
        for head in range(kv_head * group, (kv_head + 1) * group):
            for start in range(0, length, TILE):
                count = min(TILE, length - start)
                # What a tile sees begins with a whole panel: so a score's lane is its token's.
                first = max(0, start - before) // LANES * LANES
                last = min(length, start + count + after)
                panels = (last - first + LANES - 1) // LANES
                matmul(
                    address_of(qkv) + start * row + head * head_dim * 4, row, count, head_dim,
                    address_of(keys) + first * head_dim * 4, zeros, panels, to_scores, score_row,
                )  # fmt: skip
                for q in range(count):
                    own = scores[q]
                    for t in range(0, max(0, start + q - before) - first):
                        own[t] = _MASKED
                    for t in range(min(length, start + q + after + 1) - first, panels * LANES):
                        own[t] = _MASKED
                    total = exp_row(to_scores + q * score_row, scale, panels)
                    scale_row(to_scores + q * score_row, _F32(1.0) / total, panels)
                to = address_of(context) + (start * heads + head) * head_dim * 4
                for p in range(head_dim // LANES):
                    matmul(
                        to_scores, score_row, count, last - first,
                        address_of(values) + (p * length + first) * ROW_BYTES, zeros, 1,
                        to + p * ROW_BYTES, heads * head_dim * 4,
                    )  # fmt: skip


def scratch_size(
    tokens: int,
    longest: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
) -> int:
    """Return the floats that `run_layers` needs for chunks of `tokens`, sequences up to
    `longest`."""
    padded = -(-longest // LANES) * LANES
    wide = max(2 * (heads + kv_heads) * head_dim, 2 * intermediate)
    return tokens * (hidden + wide) + padded * (2 * head_dim + TILE)


_F32_ROW = types.Array(types.float32, 1, "C")
RUN_LAYERS = (
    types.Array(types.float32, 2, "C"),
    types.Array(types.int64, 1, "C"),
    types.Array(types.int64, 2, "C"),
    types.Array(types.int64, 1, "C"),
    types.Array(types.float32, 4, "C"),
    _F32_ROW,
    _F32_ROW,
    types.float64,
    types.float64,
    _F32_ROW,
)
