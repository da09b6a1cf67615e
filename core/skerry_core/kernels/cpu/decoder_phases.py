"""The phases of a decoder's step but attention, experts and sampling, the same on every thread.

Threads split a phase by claiming items. Who does what never changes a bit: every output element is
computed by one thread in one order. Items are slices of rows.

Every phase is compiled apart (see `linking`) with one signature: target, step, thread, layer.
"""

from __future__ import annotations

import numpy as np

from skerry_core.kernels.cpu.embedding_row import embed
from skerry_core.kernels.cpu.rowwise import activate, cap, quantize, rms_norm
from skerry_core.kernels.cpu.step_parts import (
    DOWN_MATRIX,
    GATE,
    OUTPUT_MATRIX,
    UP,
    call_phase,
    claim_item,
    floats_at,
    ints_at,
    matrix_of,
    multiply,
    normed_rows,
    quantize_row,
    share,
)
from skerry_core.kernels.cpu.step_records import (
    CHUNK_TOKENS,
    DOWN,
    FEED_FORWARD,
    LAYER,
    LOGITS,
    OUTPUT,
    PRIVATE_TOKENS,
    SLICE_ROWS,
    WIDE_ROWS,
)
from skerry_core.kernels.matmul.layout import BLOCK
from skerry_core.kernels.matmul.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.simd.aliases import Address, Record
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target

_HEAD_ROWS = 512  # rows of an item of the logits phase
_WIDE_COLUMNS = 8192  # of weights, up to which an item has WIDE_ROWS rows
_ITEMS_OF_THREAD = 4  # at least, so that all threads end at about the same time


@kernel
def prepare(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Embed this thread's tokens, on a first stage; thread 0 plans their attention."""
    hidden = step.hidden_size
    token_ids = ints_at(step.token_ids, 0, step.num_tokens)
    first, last = share(step.num_tokens, step, thread)
    if not step.embedding:  # the hidden rows came from the stage before
        last = first
    for t in range(first, last):
        row = floats_at(step.hidden, t * hidden, hidden)
        embed(target, step.embedding, token_ids[t], row)
        if step.embedding_scale != np.float32(1.0):
            for i in range(hidden):
                row[i] *= step.embedding_scale
    if thread.index == 0:
        call_phase(step.divide_attention, (target, step, thread, 0))


@kernel
def norm(target: Target, step: Record, thread: Record, which: int) -> None:
    """Norm and quantise hidden rows: for attention (2 l) or the feed-forward network (2 l + 1) of
    layer l, or for the logits, of sampled tokens only.

    Each thread its share, except that few tokens are normed by every thread for itself.
    """
    columns = step.hidden_size
    is_final = which == 2 * step.num_layers
    weights = step.num_norms - 1
    if not is_final:
        layer = array_at(step.layers, (step.num_layers,), LAYER)[which // 2]
        weights = layer.ffn_norm if which % 2 else layer.attention_norm
    weight = floats_at(step.norms, max(0, weights) * columns, columns)
    tokens = step.num_samples if is_final else step.num_tokens
    floats, quants, headers = normed_rows(step, thread, tokens)
    first, last = 0, tokens
    if tokens > PRIVATE_TOKENS:
        first, last = share(tokens, step, thread)
    sampled = ints_at(step.sample_tokens, 0, step.num_samples)
    for t in range(first, last):
        source = sampled[t] if is_final else t
        row = floats_at(step.hidden, source * columns, columns)
        out = floats_at(floats, t * columns, columns)
        if weights < 0:
            out[:] = row
        else:
            rms_norm(row, weight, step.eps, out)
        quantize_row(floats, quants, headers, t, columns)


@kernel
def finish_branch(target: Target, step: Record, thread: Record, which: int) -> None:
    """Norm what a branch gave (`which` as in `norm`), and add it to the hidden rows."""
    columns = step.hidden_size
    layer = array_at(step.layers, (step.num_layers,), LAYER)[which // 2]
    index = layer.ffn_post_norm if which % 2 else layer.attention_post_norm
    weight = floats_at(step.norms, index * columns, columns)
    first, last = share(step.num_tokens, step, thread)
    for t in range(first, last):
        branch = floats_at(step.branch, t * columns, columns)
        rms_norm(branch, weight, step.eps, branch)
        to = floats_at(step.hidden, t * columns, columns)
        for i in range(columns):
            to[i] += branch[i] * step.residual_scale


@building_block
def _item_rows(step: Record, size: int, columns: int) -> int:
    """Return how many of `size` rows are an item: more where tokens are many, as long as items are
    enough for all threads and an item's weights stay in a core's cache beside a chunk."""
    rows = WIDE_ROWS if columns <= _WIDE_COLUMNS else WIDE_ROWS // 2
    are_enough = size >= _ITEMS_OF_THREAD * rows * step.num_threads
    return rows if are_enough and step.num_tokens >= CHUNK_TOKENS else SLICE_ROWS


@kernel
def _add_product(
    target: Target,
    step: Record,
    thread: Record,
    layer: int,
    which: int,
    phase: int,
    floats: Address,
    quants: Address,
    headers: Address,
    columns: int,
) -> None:
    """Compute `hidden += x @ matrix.T`, in slices of rows; where a norm follows, `branch =`."""
    hidden, tokens = step.hidden_size, step.num_tokens
    slice_rows = _item_rows(step, hidden, columns)
    start = slice_rows * claim_item(step, layer, phase)
    while start < hidden:
        rows = min(slice_rows, hidden - start)
        for first in range(0, tokens, CHUNK_TOKENS):
            count = min(CHUNK_TOKENS, tokens - first)
            multiply(
                target, step, matrix_of(step, layer, which), start, rows,
                floats + 4 * columns * first, quants + columns * first,
                headers + columns // BLOCK * HEADER_BYTES * first, columns,
                thread.products - 4 * start, rows, count,
            )  # fmt: skip
            for t in range(count):
                source = floats_at(thread.products, t * rows, rows)
                if which == OUTPUT_MATRIX and step.output_biases:
                    bias = floats_at(step.output_biases, layer * hidden + start, rows)
                    for i in range(rows):
                        source[i] += bias[i]
                at = (first + t) * hidden + start
                if step.norms_after:
                    floats_at(step.branch, at, rows)[:] = source
                    continue
                to = floats_at(step.hidden, at, rows)
                for i in range(rows):
                    to[i] += source[i] * step.residual_scale
        start = slice_rows * claim_item(step, layer, phase)


@kernel
def add_output(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Add attention's output to the hidden rows."""
    _add_product(
        target, step, thread, layer, OUTPUT_MATRIX, OUTPUT, step.attended, step.quants,
        step.headers, step.num_heads * step.head_dim,
    )  # fmt: skip


@kernel
def add_down(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Add the feed-forward network's output to the hidden rows."""
    _add_product(
        target, step, thread, layer, DOWN_MATRIX, DOWN,
        step.activated, step.wide_quants, step.wide_headers, step.intermediate_size,
    )  # fmt: skip


@kernel
def feed_forward(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Compute `silu(gate) * up` of the normed rows, quantised."""
    wide, tokens, hidden = step.intermediate_size, step.num_tokens, step.hidden_size
    floats, quants, headers = normed_rows(step, thread, tokens)
    slice_rows = _item_rows(step, wide, hidden)
    start = slice_rows * claim_item(step, layer, FEED_FORWARD)
    while start < wide:
        rows = min(slice_rows, wide - start)
        for first in range(0, tokens, CHUNK_TOKENS):
            count = min(CHUNK_TOKENS, tokens - first)
            gate, up = thread.products, thread.products + 4 * rows * count
            for which, out in ((GATE, gate), (UP, up)):
                multiply(
                    target, step, matrix_of(step, layer, which), start, rows,
                    floats + 4 * hidden * first, quants + hidden * first,
                    headers + hidden // BLOCK * HEADER_BYTES * first, hidden,
                    out - 4 * start, rows, count,
                )  # fmt: skip
            activate(
                step.activation, floats_at(gate, 0, rows * count), floats_at(up, 0, rows * count)
            )
            for t in range(count):
                at = (first + t) * wide + start
                quantize(
                    gate + 4 * rows * t,
                    rows,
                    step.wide_quants + at,
                    step.wide_headers + at // BLOCK * HEADER_BYTES,
                )
                if step.activated:
                    floats_at(step.activated, at, rows)[:] = floats_at(gate, rows * t, rows)
        start = slice_rows * claim_item(step, layer, FEED_FORWARD)


@kernel
def compute_logits(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Compute the logits of the sampled tokens."""
    floats, quants, headers = normed_rows(step, thread, step.num_samples)
    start = _HEAD_ROWS * claim_item(step, step.num_layers, LOGITS)
    while start < step.vocab_size:
        multiply(
            target, step, step.head, start, _HEAD_ROWS, floats, quants, headers,
            step.hidden_size, step.logits, step.logits_stride, step.num_samples,
        )  # fmt: skip
        count = min(_HEAD_ROWS, step.vocab_size - start)
        for s in range(step.num_samples):
            logits = floats_at(step.logits, s * step.logits_stride + start, count)
            if step.logit_scale != np.float32(1.0):
                for i in range(count):
                    logits[i] *= step.logit_scale
            if step.logit_cap > np.float32(0.0):
                cap(logits, step.logit_cap)
        start = _HEAD_ROWS * claim_item(step, step.num_layers, LOGITS)
