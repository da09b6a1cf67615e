"""An encoder's whole forward pass over a chunk of sequences, in one compiled call without the GIL.

Sequences lie one after another without padding, so the products run over tokens of all of them;
attention is per sequence. A token's bits depend on its own sequence only: not on what shares the
chunk, on the chunk's size, or on the number of threads.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from numba import types

from skerry_core.encoder.ops import (
    ROW_BYTES,
    add_layer_norm,
    exp_row,
    gelu,
    multiply_1_1,
    multiply_2_1,
    multiply_6_1,
    multiply_12_1,
    multiply_12_2,
    scale_row,
)
from skerry_core.kernels.simd.aliases import Address, Float32, Int32, Int64
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.kernels.simd.memory import address_of
from skerry_core.kernels.simd.numba_math import kernel

# Columns of `layers`: addresses of packed matrices and of vectors, in this order.
QKV, QKV_BIAS, OUT, OUT_BIAS, OUT_GAMMA, OUT_BETA = range(6)
UP, UP_BIAS, DOWN, DOWN_BIAS, DOWN_GAMMA, DOWN_BETA = range(6, 12)
NUM_FIELDS = 12

MEAN, CLS, MAX, LAST = range(4)  # kinds of pooling

TILE = 12 if llvm.get_host_cpu_features().get("avx512f") else 6  # tokens multiplied at once
_CACHED_BYTES = 192 * 1024  # of tokens that meet every panel before the next ones come: half an L2
_MASKED = np.float32(-1e30)  # a score whose exp is 0


@kernel
def matmul(
    x: Address,  # f32[tokens, depth]
    x_stride: int,  # bytes
    tokens: int,
    depth: int,
    panels: Address,  # f32[num_panels, depth, 16]
    bias: Address,  # f32[num_panels, 16]
    num_panels: int,
    out: Address,  # f32[tokens, 16 num_panels], written
    out_stride: int,  # bytes
) -> None:
    """Multiply every token by a packed matrix and add its bias."""
    chunk = max(TILE, _CACHED_BYTES // (4 * depth) // TILE * TILE)
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        paired = num_panels // 2 * 2 if TILE == 12 else 0
        for p in range(0, paired, 2):
            panel, first = panels + p * depth * ROW_BYTES, bias + p * ROW_BYTES
            to, t = out + p * ROW_BYTES, start
            while t + 12 <= end:
                multiply_12_2(
                    x + t * x_stride, x_stride, panel, first, depth,
                    to + t * out_stride, out_stride,
                )  # fmt: skip
                t += 12
            for q in range(2):
                _multiply_panel(
                    x, x_stride, t, end, depth, panel + q * depth * ROW_BYTES,
                    first + q * ROW_BYTES, to + q * ROW_BYTES, out_stride,
                )  # fmt: skip
        for p in range(paired, num_panels):
            _multiply_panel(
                x, x_stride, start, end, depth, panels + p * depth * ROW_BYTES,
                bias + p * ROW_BYTES, out + p * ROW_BYTES, out_stride,
            )  # fmt: skip


@kernel
def _multiply_panel(
    x: Address,
    x_stride: int,
    start: int,  # the first token
    end: int,
    depth: int,
    panel: Address,  # f32[depth, 16]
    bias: Address,  # f32[16]
    out: Address,  # f32[tokens, 16]
    out_stride: int,
) -> None:
    t = start
    if TILE == 12:
        while t + 12 <= end:
            multiply_12_1(
                x + t * x_stride, x_stride, panel, bias, depth, out + t * out_stride, out_stride
            )
            t += 12
    while t + 6 <= end:
        multiply_6_1(
            x + t * x_stride, x_stride, panel, bias, depth, out + t * out_stride, out_stride
        )
        t += 6
    while t + 2 <= end:
        multiply_2_1(
            x + t * x_stride, x_stride, panel, bias, depth, out + t * out_stride, out_stride
        )
        t += 2
    if t < end:
        multiply_1_1(
            x + t * x_stride, x_stride, panel, bias, depth, out + t * out_stride, out_stride
        )


@kernel
def attend(
    qkv: Float32,  # f32[tokens, 3 hidden]: queries, keys and values of one sequence
    head_dim: int,  # a multiple of 16
    zeros: Float32,  # f32[>= length + 15, >= head_dim]: where sums without a bias start
    keys: Float32,  # f32[>= (length + 15) head_dim]: scratch
    values: Float32,  # f32[>= length head_dim]: scratch
    scores: Float32,  # f32[TILE, >= length + 15]: scratch
    context: Float32,  # f32[tokens, hidden], written
) -> None:
    """Attend with every token to all of its sequence."""
    length, hidden = context.shape
    num_panels = (length + LANES - 1) // LANES
    scale = np.float32(1.0 / np.sqrt(np.float64(head_dim)))
    row, score_row = qkv.shape[1] * 4, scores.shape[1] * 4
    for head in range(hidden // head_dim):
        column = head * head_dim
        for t in range(num_panels * LANES):  # keys as panels [head_dim, 16 tokens]
            base = t // LANES * head_dim * LANES + t % LANES
            for d in range(head_dim):
                key = qkv[t, hidden + column + d] if t < length else np.float32(0.0)
                keys[base + d * LANES] = key
        for t in range(length):  # values as panels [tokens, 16 dimensions]
            for d in range(head_dim):
                panel = d // LANES * length * LANES
                values[panel + t * LANES + d % LANES] = qkv[t, 2 * hidden + column + d]
        for start in range(0, length, TILE):
            count = min(TILE, length - start)
            matmul(
                address_of(qkv) + start * row + column * 4, row, count, head_dim,
                address_of(keys), address_of(zeros), num_panels, address_of(scores), score_row,
            )  # fmt: skip
            to = address_of(context) + start * hidden * 4 + column * 4
            for q in range(count):
                for t in range(length, num_panels * LANES):
                    scores[q, t] = _MASKED
                total = exp_row(address_of(scores) + q * score_row, scale, num_panels)
                scale_row(address_of(scores) + q * score_row, np.float32(1.0) / total, num_panels)
            matmul(
                address_of(scores), score_row, count, length,
                address_of(values), address_of(zeros), head_dim // LANES, to, hidden * 4,
            )  # fmt: skip


@kernel
def encode(
    token_ids: Int32,  # i32[tokens]
    starts: Int64,  # i64[sequences + 1]: where each begins, and the number of tokens
    second_starts: Int64,  # i64[sequences]: tokens before each one's second part
    first_position: int,  # of a sequence's first token
    words: Address,  # f32[vocabulary, hidden], perhaps in a mapped file
    positions: Float32,  # f32[parts, positions, hidden], with each part's token type added
    norm: Float32,  # f32[2, hidden]: scale and shift of the embeddings' norm
    layers: Int64,  # i64[num_layers, NUM_FIELDS]: addresses
    intermediate: int,  # width of the feed-forward part, a multiple of 16
    head_dim: int,
    norm_epsilon: float,
    hidden: Float32,  # f32[>= tokens, hidden]: the last layer's states; written
    scratch: Float32,  # f32[>= scratch_size(...)]
) -> None:
    """Run the encoder over some whole sequences."""
    tokens, size = token_ids.shape[0], hidden.shape[1]
    epsilon = np.float32(norm_epsilon)
    wide = max(4 * size, intermediate)
    qkv = scratch[: tokens * 3 * size].reshape((tokens, 3 * size))
    context = scratch[tokens * 3 * size : tokens * 4 * size].reshape((tokens, size))
    inner = scratch[: tokens * intermediate].reshape((tokens, intermediate))  # in place of both
    added = scratch[tokens * wide : tokens * (wide + size)].reshape((tokens, size))
    rest = scratch[tokens * (wide + size) :]
    vectors, row = size // LANES, size * 4
    out, add = address_of(hidden), address_of(added)

    for s in range(starts.shape[0] - 1):
        for t in range(starts[s], starts[s + 1]):
            index = t - starts[s]
            part = 1 if index >= second_starts[s] else 0
            place = part * positions.shape[1] + first_position + index
            add_layer_norm(
                words + np.int64(token_ids[t]) * row,
                address_of(positions) + place * row,
                address_of(norm), address_of(norm) + row, epsilon, vectors, out + t * row,
            )  # fmt: skip

    for layer in range(layers.shape[0]):
        at = layers[layer]
        matmul(out, row, tokens, size, at[QKV], at[QKV_BIAS], 3 * vectors, address_of(qkv), 3 * row)
        for s in range(starts.shape[0] - 1):
            first, last = starts[s], starts[s + 1]
            padded = (last - first + LANES - 1) // LANES * LANES
            zeros, room = rest[: padded + head_dim], rest[padded + head_dim :]
            zeros[:] = np.float32(0.0)
            keys = room[: padded * head_dim]
            values = room[padded * head_dim : padded * 2 * head_dim]
            scores = room[padded * 2 * head_dim : padded * (2 * head_dim + TILE)]
            attend(
                qkv[first:last], head_dim, zeros, keys, values,
                scores.reshape((TILE, padded)), context[first:last],
            )  # fmt: skip
        matmul(address_of(context), row, tokens, size, at[OUT], at[OUT_BIAS], vectors, add, row)
        _add_norm(add, out, at[OUT_GAMMA], at[OUT_BETA], epsilon, tokens, vectors)
        matmul(
            out, row, tokens, size, at[UP], at[UP_BIAS],
            intermediate // LANES, address_of(inner), intermediate * 4,
        )  # fmt: skip
        gelu(address_of(inner), tokens * (intermediate // LANES))
        matmul(
            address_of(inner), intermediate * 4, tokens, intermediate,
            at[DOWN], at[DOWN_BIAS], vectors, add, row,
        )  # fmt: skip
        _add_norm(add, out, at[DOWN_GAMMA], at[DOWN_BETA], epsilon, tokens, vectors)


@kernel
def _add_norm(
    x: Address,
    hidden: Address,
    gamma: Address,
    beta: Address,
    epsilon: np.float32,
    tokens: int,
    vectors: int,
) -> None:
    for t in range(tokens):
        at = t * vectors * ROW_BYTES
        add_layer_norm(x + at, hidden + at, gamma, beta, epsilon, vectors, hidden + at)


@kernel
def pool(
    hidden: Float32,  # f32[tokens, size]: of one sequence
    pooling: int,  # MEAN, CLS, MAX or LAST
    normalize: bool,  # to length 1
    out: Float32,  # f32[size], written
) -> None:
    """Compute the sequence's one vector. Sums run over tokens, then dimensions, in double."""
    length, size = hidden.shape
    vector = np.zeros(size, np.float64)
    for d in range(size):
        vector[d] = hidden[length - 1 if pooling == LAST else 0, d]
    if pooling in (MEAN, MAX):
        for t in range(1, length):
            for d in range(size):
                state = np.float64(hidden[t, d])
                vector[d] = max(vector[d], state) if pooling == MAX else vector[d] + state
    if pooling == MEAN:
        for d in range(size):
            vector[d] /= length
    if normalize:
        square = 0.0
        for d in range(size):
            square += vector[d] * vector[d]
        norm = max(np.sqrt(square), 1e-12)
        for d in range(size):
            vector[d] /= norm
    for d in range(size):
        out[d] = np.float32(vector[d])


def scratch_size(tokens: int, longest: int, hidden: int, intermediate: int, head_dim: int) -> int:
    """Return the floats that `encode` needs for chunks of `tokens`, sequences up to `longest`."""
    padded = -(-longest // LANES) * LANES
    wide = max(4 * hidden, intermediate)
    return tokens * (wide + hidden) + head_dim + padded * (1 + 2 * head_dim + TILE)


_F32_ROWS = types.Array(types.float32, 2, "C")
ENCODE = (
    types.Array(types.int32, 1, "C"),
    types.Array(types.int64, 1, "C"),
    types.Array(types.int64, 1, "C"),
    types.int64,
    types.int64,
    types.Array(types.float32, 3, "C"),
    _F32_ROWS,
    types.Array(types.int64, 2, "C"),
    types.int64,
    types.int64,
    types.float64,
    _F32_ROWS,
    types.Array(types.float32, 1, "C"),
)
MATMUL = (types.int64,) * 9
POOL = (_F32_ROWS, types.int64, types.boolean, types.Array(types.float32, 1, "C"))
