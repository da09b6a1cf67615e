"""The phases of a feed-forward network of experts.

A router scores the experts, in floats; each token chooses some. Tokens are then grouped by expert,
so that an expert's weights are read once for all of its tokens: a pair is a token and one of its
experts, and pairs lie in the order of experts, then of tokens. Each pair has rows of its own, and
what a token's experts give is added by one thread, in the order of the token's choice. So neither
who shares an expert nor how many changes a bit.
"""

from __future__ import annotations

import numpy as np

from skerry_core.kernels.cpu.rowwise import activate, quantize
from skerry_core.kernels.cpu.step_parts import (
    DOWN_MATRIX,
    GATE,
    UP,
    claim_item,
    floats_at,
    ints_at,
    matrix_of,
    multiply,
    normed_rows,
    share,
)
from skerry_core.kernels.cpu.step_records import (
    DOWN,
    EXPERT_ROWS,
    EXPERT_TOKENS,
    FEED_FORWARD,
    ROUTE,
    ROUTER,
    SLICE_ROWS,
)
from skerry_core.kernels.matmul.layout import BLOCK
from skerry_core.kernels.matmul.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.simd.aliases import Address, Float32, Int32, Record
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, exp_f32, kernel
from skerry_core.kernels.simd.targets import Target

_LOWEST = np.float32(-np.inf)


@kernel
def route(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Compute the router's scores of all tokens, in slices of experts."""
    tokens, experts = step.num_tokens, step.num_experts
    floats, quants, headers = normed_rows(step, thread, tokens)
    start = SLICE_ROWS * claim_item(step, layer, ROUTE)
    while start < experts:
        multiply(
            target, step, matrix_of(step, layer, ROUTER), start, SLICE_ROWS, floats, quants,
            headers, step.hidden_size, step.router_scores, step.scores_stride, tokens,
        )  # fmt: skip
        if step.router_biases:
            count = min(SLICE_ROWS, experts - start)
            bias = floats_at(step.router_biases, layer * experts + start, count)
            for t in range(tokens):
                scores = floats_at(step.router_scores, t * step.scores_stride + start, count)
                for i in range(count):
                    scores[i] += bias[i]
        start = SLICE_ROWS * claim_item(step, layer, ROUTE)


@building_block
def _choose(step: Record, scores: Float32, chosen: Int32, shares: Float32) -> None:
    """Choose a token's experts: the largest scores f32[E], the lower number of equal ones.

    Their shares are a softmax over the scores of the chosen, or of all. Scores are overwritten.
    """
    used, experts = chosen.shape[0], scores.shape[0]
    largest = _LOWEST
    for e in range(experts):
        largest = max(largest, scores[e])
    total = np.float32(0.0)
    if not step.weighs_chosen:
        for e in range(experts):
            total += exp_f32(scores[e] - largest)
    for rank in range(used):
        best = 0
        for e in range(1, experts):
            if scores[e] > scores[best]:
                best = e
        chosen[rank] = best
        shares[rank] = exp_f32(scores[best] - largest)
        scores[best] = _LOWEST
        if step.weighs_chosen:
            total += shares[rank]
    for rank in range(used):
        shares[rank] /= total


@kernel
def choose_experts(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Choose every token's experts, and put the pairs in order; on thread 0."""
    if thread.index != 0:
        return
    tokens, experts, used = step.num_tokens, step.num_experts, step.used_experts
    chosen = array_at(step.chosen, (tokens, used), np.int32)
    shares = array_at(step.shares, (tokens, used), np.float32)
    starts = ints_at(step.expert_starts, 0, experts + 1)
    busy = ints_at(step.busy_experts, 0, experts + 1)
    pair_tokens = ints_at(step.pair_tokens, 0, tokens * used)
    token_pairs = array_at(step.token_pairs, (tokens, used), np.int32)
    starts[:] = 0
    for t in range(tokens):
        scores = floats_at(step.router_scores, t * step.scores_stride, experts)
        _choose(step, scores, chosen[t], shares[t])
        for rank in range(used):
            starts[chosen[t, rank] + 1] += 1
    busy[0] = 0
    for e in range(experts):
        if starts[e + 1]:
            busy[0] += 1
            busy[busy[0]] = e
        starts[e + 1] += starts[e]
    for t in range(tokens):  # `starts` counts up, and is an expert further afterwards
        for rank in range(used):
            pair = starts[chosen[t, rank]]
            starts[chosen[t, rank]] += 1
            pair_tokens[pair], token_pairs[t, rank] = t, pair
    for e in range(experts, 0, -1):
        starts[e] = starts[e - 1]
    starts[0] = 0


@kernel
def _copy(source: Address, to: Address, size: int) -> None:
    """Copy bytes, a multiple of 16."""
    words, copies = array_at(source, (size // 8,), np.int64), array_at(to, (size // 8,), np.int64)
    for i in range(size // 8):
        copies[i] = words[i]


@building_block
def _gather(
    step: Record, thread: Record, first: int, count: int
) -> tuple[Address, Address, Address]:
    """Put the normed rows of consecutive pairs side by side; see `normed_rows`."""
    columns = step.hidden_size
    header_bytes = columns // BLOCK * HEADER_BYTES
    floats, quants, headers = normed_rows(step, thread, step.num_tokens)
    pair_tokens = ints_at(step.pair_tokens, first, count)
    if count == 1:
        t = pair_tokens[0]
        return floats + 4 * columns * t, quants + columns * t, headers + header_bytes * t
    for i in range(count):
        t = pair_tokens[i]
        _copy(quants + columns * t, thread.gathered_quants + columns * i, columns)
        _copy(headers + header_bytes * t, thread.gathered_headers + header_bytes * i, header_bytes)
        _copy(floats + 4 * columns * t, thread.gathered_floats + 4 * columns * i, 4 * columns)
    return thread.gathered_floats, thread.gathered_quants, thread.gathered_headers


@building_block
def _item(step: Record, item: int, size: int) -> tuple[int, int, int]:
    """Return an item's expert, and which of `size` rows of its matrices it is: the first, and how
    many."""
    slices = (size + EXPERT_ROWS - 1) // EXPERT_ROWS
    expert = ints_at(step.busy_experts, 1, step.num_experts)[item // slices]
    start = item % slices * EXPERT_ROWS
    return expert, start, min(EXPERT_ROWS, size - start)


@building_block
def _num_items(step: Record, size: int) -> int:
    slices = (size + EXPERT_ROWS - 1) // EXPERT_ROWS
    return int(ints_at(step.busy_experts, 0, 1)[0]) * slices


@building_block
def _add_biases(biases: Address, start: int, rows: int, products: Address, tokens: int) -> None:
    """Add f32[rows] from the start-th bias on to products f32[tokens, rows]; nothing if none."""
    if biases:
        bias = floats_at(biases, start, rows)
        for t in range(tokens):
            values = floats_at(products, t * rows, rows)
            for i in range(rows):
                values[i] += bias[i]


@kernel
def expert_feed_forward(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Compute what down matrices multiply, of every pair, quantised: `feed_forward` of experts."""
    width = step.expert_width
    starts = ints_at(step.expert_starts, 0, step.num_experts + 1)
    item = claim_item(step, layer, FEED_FORWARD)
    while item < _num_items(step, width):
        expert, start, rows = _item(step, item, width)
        row = expert * width + start
        bias = layer * step.num_experts * width + row
        gate, up = thread.products, thread.products + 4 * EXPERT_TOKENS * EXPERT_ROWS
        for first in range(starts[expert], starts[expert + 1], EXPERT_TOKENS):
            count = min(EXPERT_TOKENS, starts[expert + 1] - first)
            floats, quants, headers = _gather(step, thread, first, count)
            for which, out in ((GATE, gate), (UP, up)):
                multiply(
                    target, step, matrix_of(step, layer, which), row, rows, floats, quants,
                    headers, step.hidden_size, out - 4 * row, rows, count,
                )  # fmt: skip
            _add_biases(step.gate_biases, bias, rows, gate, count)
            _add_biases(step.up_biases, bias, rows, up, count)
            activate(
                step.activation, floats_at(gate, 0, rows * count), floats_at(up, 0, rows * count)
            )
            for i in range(count):
                at = (first + i) * width + start
                quantize(
                    gate + 4 * rows * i,
                    rows,
                    step.wide_quants + at,
                    step.wide_headers + at // BLOCK * HEADER_BYTES,
                )
                if step.activated:
                    floats_at(step.activated, at, rows)[:] = floats_at(gate, rows * i, rows)
        item = claim_item(step, layer, FEED_FORWARD)


@kernel
def expert_down(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Compute what each pair's expert gives: its down matrix times what is activated."""
    hidden, width = step.hidden_size, step.expert_width
    starts = ints_at(step.expert_starts, 0, step.num_experts + 1)
    item = claim_item(step, layer, DOWN)
    while item < _num_items(step, hidden):
        expert, start, rows = _item(step, item, hidden)
        first = starts[expert]
        multiply(
            target, step, matrix_of(step, layer, DOWN_MATRIX), expert * hidden + start, rows,
            step.activated + 4 * first * width, step.wide_quants + first * width,
            step.wide_headers + first * width // BLOCK * HEADER_BYTES, width,
            step.expert_rows + 4 * (first - expert) * hidden, hidden, starts[expert + 1] - first,
        )  # fmt: skip
        item = claim_item(step, layer, DOWN)


@kernel
def add_experts(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Add what each token's experts give to its hidden row, in shares, in the order of choice."""
    hidden, used, experts = step.hidden_size, step.used_experts, step.num_experts
    first, last = share(step.num_tokens, step, thread)
    for t in range(first, last):
        chosen = ints_at(step.chosen, t * used, used)
        pairs = ints_at(step.token_pairs, t * used, used)
        shares = floats_at(step.shares, t * used, used)
        total = floats_at(step.expert_rows, pairs[0] * hidden, hidden)
        for rank in range(used):
            row = floats_at(step.expert_rows, pairs[rank] * hidden, hidden)
            if step.down_biases:
                bias = (layer * experts + chosen[rank]) * hidden
                at = step.expert_rows + 4 * pairs[rank] * hidden
                _add_biases(step.down_biases, bias, hidden, at, 1)
            if rank == 0:
                for i in range(hidden):
                    total[i] = row[i] * shares[0]
            else:
                for i in range(hidden):
                    total[i] += row[i] * shares[rank]
        if step.norms_after:
            floats_at(step.branch, t * hidden, hidden)[:] = total
        else:
            to = floats_at(step.hidden, t * hidden, hidden)
            for i in range(hidden):
                to[i] += total[i] * step.residual_scale
