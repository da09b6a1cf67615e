"""Steps 4 to 6 of `skerry_core.sampling` in one Triton kernel: no sort, nothing for the host to do.

Where `sampling` walks a sorted list, this looks for the logit at which the list would be cut, by
bisection over its bits: weights are integers, so their sums are exact in any order, and tokens of
one logit weigh the same. A prefix of the list is its least logit and how many tokens of that logit
belong to it, lowest ids first.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from skerry_core.kernels.triton.triton_math import exp_f32, sortable
from skerry_core.sampling import GREEDY_TEMPERATURE, WEIGHT_ONE

_CHUNK = 4096  # tokens looked at together

_GREEDY: tl.constexpr = tl.constexpr(float(GREEDY_TEMPERATURE))
_WEIGHT_ONE: tl.constexpr = tl.constexpr(float(WEIGHT_ONE))
_TO_INTEGER: tl.constexpr = tl.constexpr(1.5 * 2.0**52)  # adding it rounds, ties to even


def choose(
    adjusted: Tensor,  # f32[S, V]  without NaN
    temperature: Tensor,  # f32[S]
    top_p: Tensor,  # f32[S]
    top_k: Tensor,  # i32[S]  0: off
    lowest: Tensor,  # f32[S]  ln(min_p), at most 0
    seeds: Tensor,  # i64[S]  bits of the u64
    positions: Tensor,  # i64[S]
    choices: Tensor,  # i32[S]
) -> Tensor:
    """Choose as `sampling.choose` does: i32[S], -1 where every logit is -inf."""
    rows, vocab_size = adjusted.shape
    chosen = torch.empty(rows, dtype=torch.int32, device=adjusted.device)
    if rows:
        _choose[(rows,)](
            adjusted, temperature, top_p, top_k, lowest, seeds, positions, choices, chosen,
            vocab_size, CHUNK=min(_CHUNK, triton.next_power_of_2(vocab_size)), num_warps=8,
        )  # fmt: skip
    return chosen


@triton.jit
def _choose(
    adjusted, temperatures, top_ps, top_ks, lowests, seeds, positions, choices, chosen,
    vocab_size, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits = adjusted + row.to(tl.int64) * vocab_size
    largest = _largest(logits, vocab_size, CHUNK)
    top = tl.max(sortable(tl.full([1], 0.0, tl.float32) + largest), axis=0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    if largest == float("-inf"):
        tl.store(chosen + row, -1)
    elif temperature < _GREEDY:
        tl.store(chosen + row, _token_at(logits, vocab_size, top, 0, CHUNK))
    else:
        lowest, top_k, top_p = tl.load(lowests + row), tl.load(top_ks + row), tl.load(top_ps + row)
        cut, kept = _cut_by_least(logits, vocab_size, largest, temperature, lowest, CHUNK)
        if (top_k > 0) & (top_k < kept):
            cut, kept = _cut_by_count(logits, vocab_size, top_k, cut, top, CHUNK)
        total = _mass(logits, vocab_size, largest, temperature, cut + 1, CHUNK)
        ties = kept - _count(logits, vocab_size, cut + 1, CHUNK)
        total += ties * _weight_of(cut, largest, temperature)
        if top_p < 1:
            limit = tl.maximum(top_p.to(tl.float64) * total.to(tl.float64), 1.0)
            cut, total = _cut_by_mass(
                logits, vocab_size, largest, temperature, limit, cut, top, total, CHUNK
            )
        u = _uniform(tl.load(seeds + row), tl.load(positions + row), tl.load(choices + row))
        drawn = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        key, above = _find(logits, vocab_size, largest, temperature, drawn + 1, cut, top, CHUNK)
        rank = (drawn - above) // _weight_of(key, largest, temperature)
        tl.store(chosen + row, _token_at(logits, vocab_size, key, rank, CHUNK))


@triton.jit
def _chunk(logits, vocab_size, start, CHUNK: tl.constexpr):
    """Load (ids, logits, keys i64, which are real) of up to CHUNK tokens."""
    ids = start + tl.arange(0, CHUNK)
    is_token = ids < vocab_size
    x = tl.load(logits + ids, mask=is_token, other=float("-inf"))
    return ids, x, sortable(x).to(tl.int64), is_token


@triton.jit
def _largest(logits, vocab_size, CHUNK: tl.constexpr):
    largest = tl.full([CHUNK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, CHUNK):
        _, x, _, _ = _chunk(logits, vocab_size, start, CHUNK)
        largest = tl.maximum(largest, x)
    return tl.max(largest, axis=0)


@triton.jit
def _weights(x, largest, temperature):
    """Return fixed-point weights i64 of logits, as `sampling.weights`."""
    e = exp_f32(tl.div_rn(x - largest, tl.zeros_like(x) + temperature))
    return ((e.to(tl.float64) * _WEIGHT_ONE + _TO_INTEGER) - _TO_INTEGER).to(tl.int64)


@triton.jit
def _weight_of(key, largest, temperature):
    """Return the weight of a logit that has this key."""
    bits = (tl.full([1], 0, tl.int64) + key).to(tl.int32)
    x = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    return tl.max(_weights(x, largest, temperature), axis=0)


@triton.jit
def _mass(logits, vocab_size, largest, temperature, key, CHUNK: tl.constexpr):
    """Sum the weights of all tokens whose key is `key` or more."""
    total = tl.zeros([CHUNK], tl.int64)
    for start in range(0, vocab_size, CHUNK):
        _, x, keys, is_token = _chunk(logits, vocab_size, start, CHUNK)
        total += tl.where(is_token & (keys >= key), _weights(x, largest, temperature), 0)
    return tl.sum(total, axis=0)


@triton.jit
def _count(logits, vocab_size, key, CHUNK: tl.constexpr):
    """Count the tokens whose key is `key` or more."""
    total = tl.zeros([CHUNK], tl.int32)
    for start in range(0, vocab_size, CHUNK):
        _, _, keys, is_token = _chunk(logits, vocab_size, start, CHUNK)
        total += (is_token & (keys >= key)).to(tl.int32)
    return tl.sum(total, axis=0).to(tl.int64)


@triton.jit
def _cut_by_least(logits, vocab_size, largest, temperature, lowest, CHUNK: tl.constexpr):
    """Cut by min_p: (least key, count) of the tokens with x >= lowest."""
    least = tl.full([CHUNK], 0x7FFFFFFF, tl.int64)
    kept = tl.zeros([CHUNK], tl.int32)
    for start in range(0, vocab_size, CHUNK):
        _, x, keys, is_token = _chunk(logits, vocab_size, start, CHUNK)
        is_kept = is_token & (tl.div_rn(x - largest, tl.zeros_like(x) + temperature) >= lowest)
        least = tl.minimum(least, tl.where(is_kept, keys, 0x7FFFFFFF))
        kept += is_kept.to(tl.int32)
    return tl.min(least, axis=0), tl.sum(kept, axis=0).to(tl.int64)


@triton.jit
def _cut_by_count(logits, vocab_size, count, least, top, CHUNK: tl.constexpr):
    """Cut by top_k: (least key, count) of the first `count` tokens, which are at least `least`."""
    low, high = least, top + 1
    while low + 1 < high:
        middle = low + (high - low) // 2
        if _count(logits, vocab_size, middle, CHUNK) >= count:
            low = middle
        else:
            high = middle
    return low, count.to(tl.int64)


@triton.jit
def _cut_by_mass(
    logits, vocab_size, largest, temperature, limit, least, top, total, CHUNK: tl.constexpr
):
    """Cut by top_p: (least key, weight) of the shortest prefix that weighs `limit` or more.

    The whole prefix ends at `least` and weighs `total`.
    """
    key, above = _find(logits, vocab_size, largest, temperature, limit, least, top, CHUNK)
    weight = _weight_of(key, largest, temperature)
    mass = above + weight
    ties = (limit - mass.to(tl.float64)) / weight.to(tl.float64)
    mass += tl.maximum(ties.to(tl.int64) - 1, 0) * weight  # near the limit, and below it
    while mass.to(tl.float64) < limit:
        mass += weight
    return key, tl.minimum(mass, total)


@triton.jit
def _find(logits, vocab_size, largest, temperature, limit, least, top, CHUNK: tl.constexpr):
    """Find the key at which the running sum reaches `limit`, and the weight above it.

    The prefix ends at `least`, so that tokens of that key need not all belong to it.
    """
    low, high, above = least, top + 1, tl.zeros_like(least)
    while low + 1 < high:
        middle = low + (high - low) // 2
        mass = _mass(logits, vocab_size, largest, temperature, middle, CHUNK)
        if mass.to(limit.dtype) >= limit:
            low = middle
        else:
            high, above = middle, mass
    return low, above


@triton.jit
def _token_at(logits, vocab_size, key, rank, CHUNK: tl.constexpr):
    """Return the id of the token number `rank`, counted from 0, among those of one key."""
    token, seen = -1, tl.zeros([], tl.int32)
    for start in range(0, vocab_size, CHUNK):
        ids, _, keys, is_token = _chunk(logits, vocab_size, start, CHUNK)
        is_tie = is_token & (keys == key)
        order = seen + tl.cumsum(is_tie.to(tl.int32), axis=0) - 1
        token = tl.maximum(token, tl.max(tl.where(is_tie & (order == rank), ids, -1), axis=0))
        seen += tl.sum(is_tie.to(tl.int32), axis=0)
    return token


@triton.jit
def _uniform(seed, position, choice):
    """Compute `exact_math.uniform`: Philox4x32-10 of (position, choice), keyed by the seed."""
    low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    w0, w1, _, _ = tl.philox(seed, low, high, choice.to(tl.uint32), zero)
    bits = (w0.to(tl.int64) << 20) | (w1 >> 12).to(tl.int64)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2^-52
