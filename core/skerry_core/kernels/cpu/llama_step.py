"""One step of a Llama-like model: `run_thread`, the same on every thread.

Threads split each phase by claiming items and meet at barriers. Who does what never changes a bit:
every output element is computed by one thread in one order. Items are heads (projection of queries,
keys and values, rotary embedding, the write to the cache), attention tasks (see `attend_step`) and
slices of rows.

Every phase is compiled apart (see `linking`) with one signature: target, plan, thread, layer.
"""

from __future__ import annotations

import numpy as np

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.layout import BLOCK, WeightFormat
from skerry_core.kernels.cpu.matmul import MATMUL, MATRIX
from skerry_core.kernels.cpu.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.cpu.plan import (
    DOWN,
    FEED_FORWARD,
    LOGITS,
    OUTPUT,
    PHASE,
    PRIVATE_TOKENS,
    PROJECT,
    SLICE_ROWS,
)
from skerry_core.kernels.cpu.rowwise import embed, quantize, rms_norm, rope, swiglu, to_half
from skerry_core.kernels.cpu.step_parts import claim_item, floats_at, ints_at, quantize_row, share
from skerry_core.kernels.simd.aliases import Address, Record
from skerry_core.kernels.simd.linking import call_by_address
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import STEP, await_step, barrier, start_clocks, stop_clocks

_call_phase = call_by_address(*PHASE)
_call_matmul = call_by_address(*MATMUL)

# Matrices of a layer, in the order of `llama.LAYER_MATRICES`.
_QUERY, _KEY, _VALUE, _OUTPUT, _GATE, _UP, _DOWN = range(7)
_MATRICES = 7
_MATRIX_BYTES = MATRIX.itemsize

_HEAD_ROWS = 512  # rows of an item of the logits phase
_F16 = int(WeightFormat.F16)  # formats up to here take float activations


# Small parts


@building_block
def _matrix(plan: Record, layer: int, which: int) -> Address:
    return plan.layers + (layer * _MATRICES + which) * _MATRIX_BYTES


@building_block
def _multiply(
    target: Target,
    plan: Record,
    matrix_at: Address,
    first_row: int,
    num_rows: int,
    floats: Address,
    quants: Address,
    headers: Address,
    columns: int,
    out: Address,
    stride: int,
    tokens: int,
) -> None:
    """Rows of a matrix times `tokens` rows of `columns` activations, floats or quantised.

    Written to f32[tokens, stride] at `out`, whose column 0 belongs to row 0 of the matrix.
    """
    matrix = array_at(matrix_at, (1,), MATRIX)[0]
    x, x_stride = quants, columns
    if matrix.format <= _F16:
        x, x_stride = floats, 4 * columns
    first = first_row // target.rows
    last = min((first_row + num_rows) // target.rows, matrix.num_groups)
    _call_matmul(
        plan.matmul,
        (target, matrix_at, first, last, x, x_stride,
         headers, columns // BLOCK * HEADER_BYTES, out, 4 * stride, tokens),
    )  # fmt: skip


@building_block
def _normed(plan: Record, thread: Record, tokens: int) -> tuple[Address, Address, Address]:
    """Where `norm` puts its rows: addresses of floats, quants and headers."""
    if tokens <= PRIVATE_TOKENS:
        return thread.normed, thread.quants, thread.headers
    return plan.normed, plan.quants, plan.headers


# Phases


@kernel
def prepare(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Embed this thread's tokens; thread 0 plans their attention."""
    hidden = plan.hidden_size
    token_ids = ints_at(plan.token_ids, 0, plan.num_tokens)
    first, last = share(plan.num_tokens, plan, thread)
    for t in range(first, last):
        embed(target, plan.embedding, token_ids[t], floats_at(plan.hidden, t * hidden, hidden))
    if thread.index == 0:
        _call_phase(plan.plan_attention, (target, plan, thread, 0))


@kernel
def norm(target: Target, plan: Record, thread: Record, which: int) -> None:
    """Norm and quantise hidden rows with weights `which` of `plan.norms`.

    Each thread its share, except that few tokens are normed by every thread for itself. The last
    weights norm the sampled tokens only.
    """
    columns = plan.hidden_size
    weight = floats_at(plan.norms, which * columns, columns)
    is_final = which == 2 * plan.num_layers
    tokens = plan.num_samples if is_final else plan.num_tokens
    floats, quants, headers = _normed(plan, thread, tokens)
    first, last = 0, tokens
    if tokens > PRIVATE_TOKENS:
        first, last = share(tokens, plan, thread)
    sampled = ints_at(plan.sample_tokens, 0, plan.num_samples)
    for t in range(first, last):
        source = sampled[t] if is_final else t
        row = floats_at(plan.hidden, source * columns, columns)
        rms_norm(row, weight, plan.eps, floats_at(floats, t * columns, columns))
        quantize_row(floats, quants, headers, t, columns)


@building_block
def _write_cache(
    target: Target,
    plan: Record,
    thread: Record,
    layer: int,
    kv_head: int,
    which: int,
    values: Address,
    t: int,
    position: int,
) -> None:
    """Write one token's key (which = 0) or value (1) of one KV head to its slot in the cache."""
    dim = plan.head_dim
    row = ints_at(plan.token_rows, t, 1)[0]
    block = ints_at(plan.block_tables, row * plan.table_width + position // BLOCK_SIZE, 1)[0]
    slot = position % BLOCK_SIZE
    page = plan.kv + 2 * (
        block * plan.kv_block_stride
        + ((layer * 2 + which) * plan.num_kv_heads + kv_head) * dim * BLOCK_SIZE
    )
    if which == 1:
        to_half(target, values, dim, page + 2 * slot * dim)
        return
    to_half(target, values, dim, thread.half)
    half = array_at(thread.half, (dim,), np.uint16)
    transposed = array_at(page, (dim, BLOCK_SIZE), np.uint16)
    for i in range(dim):
        transposed[i, slot] = half[i]


@kernel
def project(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Project heads of q, k and v for all tokens; norm and rotate q and k; write k and v."""
    dim, heads, kv_heads, tokens = plan.head_dim, plan.num_heads, plan.num_kv_heads, plan.num_tokens
    half, width = dim // 2, (heads + 2 * kv_heads) * dim
    floats, quants, headers = _normed(plan, thread, tokens)
    positions = ints_at(plan.positions, 0, tokens)
    item = claim_item(plan, layer, PROJECT)
    while item < heads + 2 * kv_heads:
        if item < heads:
            which, head = _QUERY, item
        elif item < heads + kv_heads:
            which, head = _KEY, item - heads
        else:
            which, head = _VALUE, item - heads - kv_heads
        _multiply(
            target, plan, _matrix(plan, layer, which), head * dim, dim, floats, quants, headers,
            plan.hidden_size, plan.qkv + 4 * (item - head) * dim, width, tokens,
        )  # fmt: skip
        for t in range(tokens):
            values = floats_at(plan.qkv, t * width + item * dim, dim)
            if plan.biases:
                bias = floats_at(plan.biases, layer * width + item * dim, dim)
                for i in range(dim):
                    values[i] += bias[i]
            position = positions[t]
            if which != _VALUE and plan.head_norms:
                weight = floats_at(plan.head_norms, (2 * layer + which) * dim, dim)
                rms_norm(values, weight, plan.eps, values)
            if which != _VALUE:
                rope(
                    values,
                    floats_at(plan.cosines, position * half, half),
                    floats_at(plan.sines, position * half, half),
                )
            if which != _QUERY:
                at = plan.qkv + 4 * (t * width + item * dim)
                _write_cache(target, plan, thread, layer, head, which - _KEY, at, t, position)
        item = claim_item(plan, layer, PROJECT)


@kernel
def _add_product(
    target: Target,
    plan: Record,
    thread: Record,
    layer: int,
    which: int,
    phase: int,
    floats: Address,
    quants: Address,
    headers: Address,
    columns: int,
) -> None:
    """`hidden += x @ matrix.T`, in slices of rows."""
    hidden, tokens = plan.hidden_size, plan.num_tokens
    item = claim_item(plan, layer, phase)
    while item < hidden // SLICE_ROWS:
        start = item * SLICE_ROWS
        _multiply(
            target, plan, _matrix(plan, layer, which), start, SLICE_ROWS, floats, quants, headers,
            columns, thread.products - 4 * start, SLICE_ROWS, tokens,
        )  # fmt: skip
        for t in range(tokens):
            source = floats_at(thread.products, t * SLICE_ROWS, SLICE_ROWS)
            to = floats_at(plan.hidden, t * hidden + start, SLICE_ROWS)
            for i in range(SLICE_ROWS):
                to[i] += source[i]
        item = claim_item(plan, layer, phase)


@kernel
def add_output(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Add attention's output to the hidden rows."""
    _add_product(
        target, plan, thread, layer, _OUTPUT, OUTPUT, plan.attended, plan.quants, plan.headers,
        plan.num_heads * plan.head_dim,
    )  # fmt: skip


@kernel
def add_down(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Add the feed-forward network's output to the hidden rows."""
    _add_product(
        target, plan, thread, layer, _DOWN, DOWN,
        plan.activated, plan.wide_quants, plan.wide_headers, plan.intermediate_size,
    )  # fmt: skip


@kernel
def feed_forward(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """`silu(gate) * up` of the normed rows, quantised."""
    wide, tokens = plan.intermediate_size, plan.num_tokens
    floats, quants, headers = _normed(plan, thread, tokens)
    item = claim_item(plan, layer, FEED_FORWARD)
    while item < wide // SLICE_ROWS:
        start = item * SLICE_ROWS
        gate, up = thread.products, thread.products + 4 * SLICE_ROWS * tokens
        for which, out in ((_GATE, gate), (_UP, up)):
            _multiply(
                target, plan, _matrix(plan, layer, which), start, SLICE_ROWS,
                floats, quants, headers, plan.hidden_size, out - 4 * start, SLICE_ROWS, tokens,
            )  # fmt: skip
        swiglu(floats_at(gate, 0, SLICE_ROWS * tokens), floats_at(up, 0, SLICE_ROWS * tokens))
        for t in range(tokens):
            at = t * wide + start
            quantize(
                gate + 4 * SLICE_ROWS * t,
                SLICE_ROWS,
                plan.wide_quants + at,
                plan.wide_headers + at // BLOCK * HEADER_BYTES,
            )
            if plan.activated:
                to = floats_at(plan.activated, at, SLICE_ROWS)
                to[:] = floats_at(gate, SLICE_ROWS * t, SLICE_ROWS)
        item = claim_item(plan, layer, FEED_FORWARD)


@kernel
def compute_logits(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Logits of the sampled tokens."""
    floats, quants, headers = _normed(plan, thread, plan.num_samples)
    start = _HEAD_ROWS * claim_item(plan, plan.num_layers, LOGITS)
    while start < plan.vocab_size:
        _multiply(
            target, plan, plan.head, start, _HEAD_ROWS, floats, quants, headers,
            plan.hidden_size, plan.logits, plan.logits_stride, plan.num_samples,
        )  # fmt: skip
        start = _HEAD_ROWS * claim_item(plan, plan.num_layers, LOGITS)


# The step


@building_block
def _run_phase(phase: Address, target: Target, plan: Record, thread: Record, index: int) -> None:
    _call_phase(phase, (target, plan, thread, index))


@building_block
def _meet(plan: Record) -> None:
    barrier(plan.sync, plan.num_threads)


@building_block
def _run_norm(target: Target, plan: Record, thread: Record, which: int, tokens: int) -> None:
    _run_phase(plan.norm, target, plan, thread, which)
    if tokens > PRIVATE_TOKENS:
        _meet(plan)


@building_block
def _run_layer(target: Target, plan: Record, thread: Record, layer: int) -> None:
    _run_norm(target, plan, thread, 2 * layer, plan.num_tokens)
    _run_phase(plan.project, target, plan, thread, layer)
    _meet(plan)
    _run_phase(plan.attend, target, plan, thread, layer)
    _meet(plan)
    _run_phase(plan.add_output, target, plan, thread, layer)
    _meet(plan)
    _run_norm(target, plan, thread, 2 * layer + 1, plan.num_tokens)
    _run_phase(plan.feed_forward, target, plan, thread, layer)
    _meet(plan)
    _run_phase(plan.add_down, target, plan, thread, layer)
    _meet(plan)


@building_block
def _run_step(target: Target, plan: Record, thread: Record) -> None:
    _run_phase(plan.prepare, target, plan, thread, 0)
    _meet(plan)
    for layer in range(plan.num_layers):
        _run_layer(target, plan, thread, layer)
    if plan.num_samples:
        _run_norm(target, plan, thread, 2 * plan.num_layers, plan.num_samples)
        _run_phase(plan.compute_logits, target, plan, thread, 0)
        _meet(plan)
        _run_phase(plan.sample, target, plan, thread, 0)
    _meet(plan)


@kernel
def run_thread(target: Target, plan: Record, thread: Record) -> int:
    """Thread 0 runs one step; the others run every step until they are stopped or park.

    Gives `threads.STEP` to thread 0, and `threads.STOPPED` or `threads.PARKED` to the others.
    """
    while True:
        reason = STEP
        if thread.index != 0:
            reason = await_step(plan.sync, thread.index)
        if reason != STEP:
            return reason
        if thread.index == 0:
            start_clocks(plan.sync)
        _run_step(target, plan, thread)
        if thread.index == 0:
            stop_clocks(plan.sync)
            return reason
